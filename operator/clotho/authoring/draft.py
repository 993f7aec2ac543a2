"""A draft of a run: an environment of the catalogue and the settings so far, checked with every edit."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from clotho.api import validation
from clotho.api.environment import Environment
from clotho.api.lockable import ENVIRONMENT_CONFIG
from clotho.api.policy import Policy, fill_in, shown, violations
from clotho.api.training_run import EnvironmentSpec, TrainingRunSpec
from clotho.authoring import config_fields
from clotho.authoring.mistakes import mistakes_in
from clotho.authoring.run_decided import ATROPOS_ENTRY, DECIDED_BY, DEFAULT_FROM
from clotho.authoring.run_fields import run_fields, value_in, with_value
from clotho_contract.description import ConfigField
from clotho_contract.nearest import nearest

PLACE_NAME_LIMIT: Final = 40  # of an environment within a run
REPLICAS: Final = ConfigField(
    name="environment.replicas",
    type="integer",
    default=1,
    minimum=0,
    maximum=256,
    description="How many pods of the environment produce trajectories.",
)


class RefusedEditError(Exception):
    """Says what is wrong; `details` are for programs: the locked value, or the names that there are."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details

    @property
    def has_guess(self) -> bool:
        """`did you mean x?`, which a list of all names would only hide."""
        return str(self).endswith("?")


class Setting(Struct, frozen=True, kw_only=True):
    """A field, what it is set to now, and whether the administrator lets anybody change it."""

    field: ConfigField
    value: Any
    is_locked: bool
    decided_by: str = ""  # the setting of the run that does, for fields that cannot be set


class Draft(Struct, frozen=True, kw_only=True):
    """Fields of the run go by their paths (`training.steps`), those of the environment by their own names."""

    environment: Environment
    policy: Policy = field(default_factory=Policy)
    spec: Mapping[str, Any] = field(default_factory=dict)  # of the run, without its environments
    config: Mapping[str, Any] = field(default_factory=dict)  # of the environment
    replicas: int | None = None

    def locked(self) -> dict[str, Any]:
        """What the administrator has decided, by field."""
        of_run = {name: value_in(self.policy.locked, name) for name in run_fields()}
        of_environments: dict[str, Any] = self.policy.locked.get(ENVIRONMENT_CONFIG, {})
        return {**of_environments, **{name: value for name, value in of_run.items() if value is not None}}

    def fields(self) -> dict[str, ConfigField]:
        own = {each.name: each for each in self.environment.status.fields}
        return {**own, REPLICAS.name: REPLICAS, **run_fields()}

    def settings(self) -> Iterator[Setting]:
        locked = self.locked()
        for name, each in self.fields().items():
            decided_by = DECIDED_BY.get(name, "the entry") if each.fixed else ""
            is_locked = name in locked or each.fixed
            yield Setting(field=each, value=self.value(each), is_locked=is_locked, decided_by=decided_by)
        for name in locked.keys() - self.fields().keys():  # of other environments, or too many to be described
            yield Setting(field=ConfigField(name=name), value=locked[name], is_locked=True)

    def value(self, wanted: ConfigField) -> Any:
        """Decided by the run, locked, set, or else the default."""
        name, locked = wanted.name, self.locked()
        if wanted.fixed:
            return self._written_by_run().get(name, wanted.default)
        if name in locked:
            return locked[name]
        if name == REPLICAS.name:
            given = self.replicas
        elif name in run_fields():
            given = value_in(self.spec, name)
        else:
            given = {**self._defaults_of_run(), **self.environment.spec.config, **self.config}.get(name)
        return wanted.default if given is None else given

    def _written_by_run(self) -> dict[str, Any]:
        """What cannot be set, and what it will be; None where it is known only once the run exists."""
        place = EnvironmentSpec(name=self._place_name())
        of_place = {
            "environments[].name": place.name,
            "environments[].weight": place.weight,
            "environments[].minBatchAllocation": place.min_batch_allocation,
        }
        return {
            name: self.value(run_fields()[setting]) or None if setting in run_fields() else of_place.get(setting)
            for name, setting in DECIDED_BY.items()
        }

    def _defaults_of_run(self) -> dict[str, Any]:
        is_atropos = self.environment.entry.startswith(ATROPOS_ENTRY)
        return {name: self.value(run_fields()[path]) for name, path in DEFAULT_FROM.items() if is_atropos}

    def _place_name(self) -> str:
        return self.environment.metadata.name.replace(".", "-")[:PLACE_NAME_LIMIT].rstrip("-")

    def edit(self, name: str, value: Any) -> "Draft":
        """A copy that says so; cross-field problems are left to `problems`, so that edits can come in any order."""
        known, locked = self.fields(), self.locked()
        if name in known and known[name].fixed:
            reason = f"{name}: {config_fields.why_fixed(known[name], self._written_by_run())}"
            raise RefusedEditError(reason, locked_value=self.value(known[name]))
        if name in locked:
            reason = f"{name} is locked to {shown(locked[name])} by {self.policy.title}"
            raise RefusedEditError(reason, locked_value=locked[name])
        if name not in known and not (self.environment.status.omitted_fields and "." not in name):
            settable = [each for each, field in known.items() if not field.fixed and each not in locked]
            raise RefusedEditError(f"there is no field {name}{nearest(name, settable)}", available_fields=settable)
        field = known.get(name, ConfigField(name=name))
        value = _as_meant(field, value)
        if problem := config_fields.value_problem(field, value):
            raise RefusedEditError(f"{name}: {problem}")
        return self._with(name, value)

    def _with(self, name: str, value: Any) -> "Draft":
        if name == REPLICAS.name:
            return msgspec.structs.replace(self, replicas=value)
        if name in run_fields():
            return msgspec.structs.replace(self, spec=with_value(self.spec, name, value))
        return msgspec.structs.replace(self, config={**self.config, name: value})

    def run_spec(self) -> dict[str, Any]:
        """The TrainingRun's spec. Locked fields are left to the operator, but for those that no run can be without."""
        spec: dict[str, Any] = dict(self.spec)
        for path, value in self.locked().items():
            if path in run_fields() and run_fields()[path].required:
                spec = with_value(spec, path, value)
        name = self.environment.metadata.name
        place: dict[str, Any] = {
            "name": self._place_name(),
            "environmentName": name,
            "config": {**self._described_group_size(), **self.config},
        }
        if self.replicas is not None:
            place["replicas"] = self.replicas
        return {**spec, "environments": [place]}

    def _described_group_size(self) -> dict[str, Any]:
        """Written down, because a batch must be a multiple of it and the API server knows only what is written."""
        for each in self.environment.status.fields:
            if each.name == "group_size" and each.name not in self.locked():
                return {"group_size": self.value(each)}
        return {}

    def problems(self, name: str) -> tuple[str, ...]:
        """Everything that would keep a run of this name from being accepted, at once."""
        spec = self.run_spec()
        if missing := [f"{path} is missing" for path, each in run_fields().items() if _is_missing(each, spec)]:
            return tuple(missing)
        (place,) = spec["environments"]
        place["config"] = {**self.environment.spec.config, **place["config"]}
        if mistakes := mistakes_in(spec, TrainingRunSpec):
            return tuple(map(str, mistakes))
        asked = msgspec.convert(spec, TrainingRunSpec)
        described, locked = self.environment.status, self.locked()
        own = {key: value for key, value in place["config"].items() if key not in locked}
        return (
            *violations(asked, self.policy),
            *validation.problems(name, fill_in(asked, self.policy)),
            *config_fields.problems(
                own, described.fields, omitted=described.omitted_fields, written=self._written_by_run()
            ),
        )


def _is_missing(field: ConfigField, spec: Mapping[str, Any]) -> bool:
    return field.required and value_in(spec, field.name) in (None, "")


def _as_meant(wanted: ConfigField, value: Any) -> Any:
    """Agents tend to send numbers as text: where text cannot be meant, it is read as JSON."""
    if not isinstance(value, str) or wanted.type == "any" or "string" in wanted.type or wanted.enum:
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value
