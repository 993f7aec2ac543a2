"""Environments by name: looked up once, when a run starts, and remembered in its status from then on."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from clotho.api.environment import AnyEnvironment, Environment, UnreadableEnvironment
from clotho.api.status import ResolvedEgress, ResolvedEnvironment
from clotho.api.training_run import EgressRule, EnvironmentSpec, TrainingRun
from clotho.authoring.config_fields import problems as config_problems
from clotho.plan.run.revision import is_revised
from clotho.plan.run.situation import Decision, Situation
from clotho.plan.wording import sentence
from clotho.render.merge import TemplateError, check, merge
from clotho_contract.nearest import nearest

Catalogue = Mapping[str, AnyEnvironment]


class Lookup(Struct, frozen=True, kw_only=True):
    """The run with its Environments filled in, or what is wrong with it, or what it must wait for."""

    run: TrainingRun
    problems: tuple[str, ...] = ()
    waiting: str = ""


def look_up(run: TrainingRun, catalogue: Catalogue, names: tuple[str, ...] = ()) -> Lookup:
    """`names`: of all Environments of the namespace."""
    if run.status.resolved:
        return Lookup(run=_filled(run, run.status.resolved))
    named = [environment for environment in run.spec.environments if environment.environment_name]
    if not named or run.status.is_finished:
        return Lookup(run=run)
    found: list[ResolvedEnvironment] = []
    wrong: list[str] = []
    for asked in named:
        entry = catalogue.get(asked.environment_name)
        if not isinstance(entry, Environment):
            return Lookup(run=run, waiting=_absence(asked.environment_name, entry, names))
        if not _brings_its_own_code(asked) and not entry.is_described:
            return Lookup(run=run, waiting=f"environment {asked.environment_name}: {_state(entry)}")
        try:
            resolved = resolve(asked, entry)
        except TemplateError as error:
            wrong.append(str(error))
            continue
        found.append(resolved)
        if not _brings_its_own_code(asked):
            problems = config_problems(resolved.config, entry.status.fields, omitted=entry.status.omitted_fields)
            wrong += [f"environments.{asked.name}.{problem}" for problem in problems]
    if wrong:
        return Lookup(run=run, problems=tuple(wrong))
    remembered = msgspec.structs.replace(run.status, resolved=tuple(found))
    return Lookup(run=_filled(msgspec.structs.replace(run, status=remembered), tuple(found)))


def resolve(asked: EnvironmentSpec, entry: Environment) -> ResolvedEnvironment:
    """The run's own settings override the Environment's. The group size is written out for the trainer."""
    defaults = {
        field.name: field.default
        for field in entry.status.fields
        if field.name == "group_size" and isinstance(field.default, int)
    }
    check(entry.spec.template, f"environment {asked.environment_name}: spec.template")
    return ResolvedEnvironment(
        name=asked.name,
        environment_name=asked.environment_name,
        image=asked.image or entry.spec.image,
        entry=asked.entry or entry.entry,
        config_map_name=asked.config_map_name or entry.spec.config_map_name,
        secret_name=asked.secret_name or entry.spec.secret_name,
        egress=tuple(ResolvedEgress(cidr=each.cidr, ports=each.ports) for each in _egress(asked, entry)),
        requirements=asked.requirements or entry.spec.requirements,
        cache_claim_name=asked.cache_claim_name or entry.spec.cache_claim_name,
        config=defaults | entry.spec.config | asked.config,
        template=merge(entry.spec.template, asked.template, f"spec.environments.{asked.name}.template"),
    )


def _egress(asked: EnvironmentSpec, entry: Environment) -> tuple[EgressRule, ...]:
    """An empty list of the run closes what the Environment opens."""
    return (asked.egress if asked.egress is not None else entry.spec.egress) or ()


def _filled(run: TrainingRun, resolved: tuple[ResolvedEnvironment, ...]) -> TrainingRun:
    known = {each.name: each for each in resolved}

    def fill(asked: EnvironmentSpec) -> EnvironmentSpec:
        if asked.name not in known:
            return asked
        found = known[asked.name]
        return msgspec.structs.replace(
            asked,
            image=found.image,
            entry=found.entry,
            config_map_name=found.config_map_name,
            secret_name=found.secret_name,
            egress=tuple(EgressRule(cidr=each.cidr, ports=each.ports) for each in found.egress),
            requirements=found.requirements,
            cache_claim_name=found.cache_claim_name,
            config=found.config,
            template=found.template,
        )

    environments = tuple(fill(asked) for asked in run.spec.environments)
    return msgspec.structs.replace(run, spec=msgspec.structs.replace(run.spec, environments=environments))


def _brings_its_own_code(asked: EnvironmentSpec) -> bool:
    """Then the description is of something else, and the environment checks its settings itself."""
    return bool(asked.image or asked.entry or asked.config_map_name)


def _absence(name: str, entry: UnreadableEnvironment | None, names: tuple[str, ...]) -> str:
    problem = entry.problem if entry else f"the Environment does not exist{nearest(name, names)}"
    return f"environment {name}: {problem}"


def _state(entry: Environment) -> str:
    return entry.stall_message.rstrip(".") or "it is being described"


def wait_for_environments(situation: Situation) -> Decision | None:
    if not situation.waiting_for:
        return None
    return Decision(
        phase="Pending",
        reason="WaitingForEnvironment",
        message=sentence(f"Waiting for {situation.waiting_for}"),
        components=situation.components,
    )


def remember_environments(situation: Situation) -> Decision | None:
    """A status write of its own before anything is made; None once it is done, or when there is nothing to note."""
    is_noted = situation.run.status.resolved == situation.stored.resolved
    if is_noted and not (situation.stored.resolved and is_revised(situation.run)):
        return None
    return Decision(
        phase="Pending",
        reason="Resolved",
        message="The environments were found; the pods are being created.",
        components=situation.components,
        resolved=situation.run.status.resolved,
    )
