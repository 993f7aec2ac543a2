"""A changed field of a run's spec, by its path; and everything that is wrong with a spec. No cluster needed."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from clotho.api import validation
from clotho.api.schema import Schema, schema_of
from clotho.api.training_run import TrainingRunSpec
from clotho.authoring.draft import Draft, RefusedEditError
from clotho.authoring.mistakes import mistakes_in
from clotho.authoring.run_fields import run_fields, with_value
from clotho_contract.nearest import nearest

Object = dict[str, Any]


def with_change(spec: Object, name: str, value: Any) -> Object:
    """A field of the run by its path; a name without a dot may also be one of its only environment's config."""
    if is_run_field(name):
        return with_value(spec, name, value)
    places = spec.get("environments")
    if "." in name or not isinstance(places, list) or len(places) != 1 or not isinstance(places[0], dict):
        fields = run_fields()
        raise RefusedEditError(f"a run has no such field{nearest(name, fields)}", available_fields=list(fields))
    (place,) = places
    return {**spec, "environments": [{**place, "config": {**(place.get("config") or {}), name: value}}]}


def edited(draft: Draft, name: str, value: Any) -> Draft:
    """Any field of the run by its path, as `with_change`; agents are offered those that hold a single value."""
    if name not in draft.fields() and is_run_field(name) and name.partition(".")[0] not in _OF_OTHER_RUNS:
        return msgspec.structs.replace(draft, spec=with_value(draft.spec, name, value))
    return draft.edit(name, value)


_OF_OTHER_RUNS: Final = ("environments", "inline")  # a draft is of one Environment


def is_run_field(name: str) -> bool:
    return _is_field(schema_of(TrainingRunSpec), name.split("."))


def _is_field(schema: Schema, path: list[str]) -> bool:
    """Below an object without declared fields (a pod template, a config) every path is one."""
    if not path:
        return True
    properties = schema.get("properties")
    if properties is None:
        return schema.get("type") == "object"
    return path[0] in properties and _is_field(properties[path[0]], path[1:])


def spec_problems(name: str, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Everything that is wrong and can be found without a cluster."""
    if mistakes := mistakes_in(spec, TrainingRunSpec):
        return tuple(map(str, mistakes))
    return validation.problems(name, msgspec.convert(spec, TrainingRunSpec))
