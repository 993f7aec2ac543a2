"""`--set FIELD=VALUE`, the value as YAML, and what it changes in a spec."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clotho.api.schema import Schema, schema_of
from clotho.api.training_run import TrainingRunSpec
from clotho.authoring.nearest import nearest
from clotho.authoring.run_fields import run_fields, with_value
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.documents import load_all, yaml_problem
from clotho.cli.terminal.screen import listed

Object = dict[str, Any]
Change = tuple[str, Any]


def read_change(text: str) -> Change:
    import yaml

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Failure(f"--set {text}: write it as FIELD=VALUE", Exit.USAGE)
    try:
        return name, next(iter(load_all(value)), None)
    except (yaml.YAMLError, ValueError) as error:
        raise Failure(f"--set {name}: the value is not YAML: {yaml_problem(error)}", Exit.USAGE) from error


def changed(spec: Object, changes: Iterable[Change]) -> Object:
    """Fields of the run by their paths; a name without a dot may also be one of its only environment's config."""
    for name, value in changes:
        spec = _with_change(spec, name, value)
    return spec


def _with_change(spec: Object, name: str, value: Any) -> Object:
    if _is_field(schema_of(TrainingRunSpec), name.split(".")):
        return with_value(spec, name, value)
    places = spec.get("environments")
    if "." in name or not isinstance(places, list) or len(places) != 1 or not isinstance(places[0], dict):
        fields = run_fields()
        raise Failure(
            f"--set {name}: a run has no such field{nearest(name, fields)}{listed('fields', fields)}", Exit.USAGE
        )
    (place,) = places
    return {**spec, "environments": [{**place, "config": {**(place.get("config") or {}), name: value}}]}


def _is_field(schema: Schema, path: list[str]) -> bool:
    """Below an object without declared fields (a pod template, a config) every path is one."""
    if not path:
        return True
    properties = schema.get("properties")
    if properties is None:
        return schema.get("type") == "object"
    return path[0] in properties and _is_field(properties[path[0]], path[1:])
