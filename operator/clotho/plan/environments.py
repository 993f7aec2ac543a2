"""The life of an Environment: imported by a pod of its own, described, and again when what was imported changes.

A failed pod stays, for its logs and as the memory of the failure: to try again, delete it or change the Environment.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct, field

from clotho.api.environment import AnyEnvironment, Described, Environment, EnvironmentStatus, UnreadableEnvironment
from clotho.api.policy import combine, pod_violations
from clotho.api.status import REFUSED
from clotho.api.training_policy import AnyPolicy
from clotho.authoring.config_fields import wrong_values
from clotho.plan.conditions import Wanted, conditions, ready, reconciling, stalled
from clotho.plan.drift import repair
from clotho.plan.egress import permitted_egress
from clotho.plan.failures import classify
from clotho.plan.model import (
    Action,
    Apply,
    Create,
    Event,
    ObjectKey,
    ObjectSeen,
    Plan,
    Probe,
    Reference,
    Refusal,
    delete_pod,
)
from clotho.plan.pod_problems import Pull, next_pod_check, pod_problem, slow_pull
from clotho.plan.pods import Pod
from clotho.plan.references import absence
from clotho.plan.settings import PlanSettings
from clotho.plan.times import later
from clotho.plan.wording import counted, not_valid, sentence
from clotho.render import describing
from clotho.render.frame import template_problem
from clotho.render.names import base_name
from clotho.render.needs import needs_of, needs_problems
from clotho_contract.description import Description, bounded

FILES_SECONDS: Final = 30  # until a ConfigMap that is not there is looked for again
_TITLE: Final = "the pod that describes the environment"
RETRY_SECONDS: Final = 60  # after a failure that is not the environment's own


class EnvironmentSeen(Struct, frozen=True, kw_only=True):
    """All that is known of an Environment besides itself."""

    pod: Pod | None = None
    objects: Mapping[ObjectKey, ObjectSeen] = field(default_factory=dict)
    files: str | None = ""  # hash of the ConfigMap's contents; None: it is not there
    description: Probe[Description] | None = None
    refused: Mapping[ObjectKey, Refusal] = field(default_factory=dict)
    policies: tuple[AnyPolicy, ...] = ()


class _Step(Struct, frozen=True, kw_only=True):
    conditions: list[Wanted]
    actions: tuple[Action, ...] = ()
    description: Description | None = None
    wake_at: datetime | None = None


def plan_environment(
    environment: AnyEnvironment, seen: EnvironmentSeen, now: datetime, settings: PlanSettings
) -> Plan[EnvironmentStatus]:
    if environment.metadata.is_being_deleted:
        return Plan()
    if isinstance(environment, UnreadableEnvironment):
        step = _Step(conditions=stalled(REFUSED, not_valid(environment.problem)))
        return _with_status(environment, step, None, now)
    source = Described(
        image=environment.spec.image or settings.render.images.environment,
        entry=environment.entry,
        files=seen.files or "",
        needs=describing.needs_hash(environment),
    )
    step = _next_step(environment, source, seen, now, settings)
    if seen.pod is not None and not seen.pod.has_ended:
        step = msgspec.structs.replace(step, actions=(*_wall(environment, seen, settings), *step.actions))
    return _with_status(environment, step, source, now)


def _wall(environment: Environment, seen: EnvironmentSeen, settings: PlanSettings) -> tuple[Apply, ...]:
    key = ObjectKey("NetworkPolicy", base_name(environment.metadata))
    egress = permitted_egress(environment, seen.policies, settings) if environment.spec.requirements else ()
    return repair(key, describing.wall(environment.metadata, egress, settings.render), seen.objects)


def _next_step(
    environment: Environment, source: Described, seen: EnvironmentSeen, now: datetime, settings: PlanSettings
) -> _Step:
    pod, status = seen.pod, environment.status
    if problem := template_problem(environment.spec.template, "spec.template", settings.render):
        return _Step(conditions=stalled(REFUSED, not_valid(problem)))
    if wrong := tuple(needs_problems("", needs_of(environment.spec), settings.render)):
        return _Step(conditions=stalled(REFUSED, not_valid("; ".join(wrong))))
    if seen.files is None:
        missing = Reference("ConfigMap", environment.spec.config_map_name, "spec.configMapName")
        return _Step(conditions=reconciling("WaitingForFiles", absence((missing,))), wake_at=later(now, FILES_SECONDS))
    if _is_of(status.described, source):
        actions = (delete_pod(pod),) if pod is not None and not pod.is_terminating else ()
        return _Step(conditions=_verdict(environment, status), actions=actions)
    if pod is None:
        return _begin(environment, source, seen, settings)
    if pod.is_terminating:
        return _waiting(pod, now)
    if pod.fingerprint != describing.fingerprint(environment, source):  # it was made from another spec
        return _Step(conditions=_describing(), actions=(delete_pod(pod),))
    if pod.has_ended:
        return _after(pod, now)
    if seen.description is not None and seen.description.pod_uid == pod.uid and seen.description.answer is not None:
        found = bounded(seen.description.answer)
        return _Step(conditions=_verdict(environment, found), description=found)
    return _waiting(pod, now)


def _waiting(pod: Pod, now: datetime) -> _Step:
    problem, pull = pod_problem(_TITLE, pod, now), slow_pull(pod, now)
    wanted = reconciling(problem.reason, problem.message) if problem is not None else _describing(pull)
    return _Step(conditions=wanted, wake_at=next_pod_check([pod], now))


def _is_of(described: Described | None, source: Described | None) -> bool:
    return described is not None and msgspec.structs.replace(described, time=None) == source


def _describing(pull: Pull | None = None) -> list[Wanted]:
    detail = f"; {pull.of('that pod')}" if pull is not None else ""
    return reconciling("Describing", f"The environment is being imported in a pod of its own{detail}.")


def _verdict(environment: Environment, found: Description | EnvironmentStatus) -> list[Wanted]:
    wrong = tuple(wrong_values(environment.spec.config, found.fields, found.omitted_fields))
    if wrong:
        return stalled("InvalidConfig", f"The config is not valid: {'; '.join(wrong)}.")
    return ready("Described", _summary(found))


def _summary(found: Description | EnvironmentStatus) -> str:
    count = len(found.fields) + found.omitted_fields
    return f"{found.class_name or 'The environment'} has {counted(count, 'setting')}."


def _begin(environment: Environment, source: Described, seen: EnvironmentSeen, settings: PlanSettings) -> _Step:
    if seen.refused:
        key, refusal = next(iter(seen.refused.items()))
        message = sentence(f"the API server refused {key.kind} {key.name}: {refusal.message}")
        if refusal.is_permanent:
            return _Step(conditions=stalled("Refused", message))
        conditions = reconciling("Refused", message)
    else:
        conditions = _describing()
    spec = environment.spec
    networks = [rule.cidr for rule in spec.egress or ()]
    if wrong := pod_violations(spec.image, spec.template, combine(seen.policies), networks):
        return _Step(conditions=stalled("Forbidden", f"The spec is not allowed: {'; '.join(wrong)}."))
    pod = describing.describing_pod(environment, source, settings.render)
    create = Create(key=ObjectKey("Pod", describing.describing_name(environment.metadata)), manifest=pod)
    return _Step(conditions=conditions, actions=(*_wall(environment, seen, settings), create))


def _after(pod: Pod, now: datetime) -> _Step:
    failure = classify(_TITLE, pod)
    reported = pod.termination
    message = sentence(reported.message if reported is not None else failure.explanation)
    is_nobodys_fault = failure.is_infrastructure or pod.status.reason == "DeadlineExceeded" or failure.exit_code == 0
    if not is_nobodys_fault:
        return _Step(conditions=stalled(failure.reason, message))
    retry_at = later(pod.ended_at or now, RETRY_SECONDS)
    is_due = retry_at <= now
    return _Step(
        conditions=reconciling(failure.reason, message),
        actions=(delete_pod(pod),) if is_due else (),
        wake_at=None if is_due else retry_at,
    )


def _with_status(
    environment: AnyEnvironment, step: _Step, source: Described | None, now: datetime
) -> Plan[EnvironmentStatus]:
    before, generation, moment = environment.status, environment.metadata.generation, now.replace(microsecond=0)
    status = msgspec.structs.replace(
        before if _is_of(before.described, source) else EnvironmentStatus(),
        observed_generation=generation,
        message=step.conditions[0][3],
        conditions=conditions(step.conditions, before.conditions, moment, generation),
    )
    if step.description is not None and source is not None:
        found = step.description
        status = msgspec.structs.replace(
            status,
            described=msgspec.structs.replace(source, time=moment),
            name=found.name,
            class_name=found.class_name,
            description=found.description,
            fields=found.fields,
            omitted_fields=found.omitted_fields,
        )
    if status == before:
        return Plan(actions=step.actions, wake_at=step.wake_at)
    return Plan(actions=step.actions, status=status, events=_events(before, status), wake_at=step.wake_at)


def _events(before: EnvironmentStatus, after: EnvironmentStatus) -> tuple[Event, ...]:
    kinds = {c.type: (c.status, c.reason) for c in after.conditions}
    old = {c.type: (c.status, c.reason) for c in before.conditions}
    if kinds.get("Ready") == ("True", "Described") and old.get("Ready") != kinds["Ready"]:
        return (Event(type="Normal", reason="Described", message=after.message),)
    if "Stalled" in kinds and old.get("Stalled") != kinds["Stalled"]:
        return (Event(type="Warning", reason="NotDescribed", message=after.message),)
    return ()
