"""The settings of a TrainingRun by their paths (`training.steps`), described like an environment's own fields."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from msgspec import UNSET

from clotho.api.lockable import value_at
from clotho.api.schema import Schema, schema_of
from clotho.api.training_run import TrainingRunSpec
from clotho_contract.description import ConfigField

_NOT_SETTINGS: Final = frozenset({"suspend", "stop", "inline"})  # of a live run, or of one without environments
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})


@cache
def run_fields() -> Mapping[str, ConfigField]:
    """Every leaf of the spec of a run with environments that holds a single value."""
    schema = schema_of(TrainingRunSpec)
    settings = {name: inner for name, inner in schema["properties"].items() if name not in _NOT_SETTINGS}
    return {field.name: field for field in _leaves(schema | {"properties": settings}, "")}


def _leaves(schema: Schema, path: str, *, is_always_there: bool = True) -> Iterator[ConfigField]:
    """What an optional object cannot be without is not required of a run that leaves the object out."""
    required = schema.get("required", ())
    for name, inner in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        if "properties" in inner:
            yield from _leaves(
                inner, where, is_always_there=is_always_there and (name in required or "default" in inner)
            )
        elif inner.get("type") in _SCALARS:
            yield _field(where, inner, is_required=is_always_there and name in required)


def _field(path: str, schema: Schema, *, is_required: bool) -> ConfigField:
    limits = {
        f"exclusive_{bound}" if schema.get(f"exclusive{bound.capitalize()}") else bound: schema[bound]
        for bound in ("minimum", "maximum")
        if bound in schema
    }
    return ConfigField(
        name=path,
        type=schema["type"],
        default=schema.get("default", "" if schema["type"] == "string" else None),
        description=schema.get("description", ""),
        required=is_required,
        min_length=schema.get("minLength"),
        max_length=schema.get("maxLength"),
        enum=tuple(schema.get("enum", ())),
        **limits,
    )


def value_in(spec: Mapping[str, Any], path: str) -> Any:
    """The value at a path of a spec; None when there is none."""
    value = value_at(spec, tuple(path.split(".")))
    return None if value is UNSET else value


def with_value(spec: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with another value at that path."""
    first, _, rest = path.partition(".")
    inner = spec.get(first)
    changed = with_value(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value
    return {**spec, first: changed}
