"""The first mistake in a spec in plain words: where it is, what may stand there, and what does."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from clotho.api.schema import Schema, schema_of
from clotho_contract.nearest import nearest

_SHOWN: Final = 60
_PART: Final = re.compile(r"[^.\[\]]+")
_FIELD: Final = re.compile(r"Object (contains unknown|missing required) field `(.*)`")
_TYPES: Final[Mapping[str, str]] = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object with fields",
}


class Mistake(Struct, frozen=True):
    path: str  # `training.steps`; empty for the spec itself
    problem: str

    def __str__(self) -> str:
        return f"{f'spec.{self.path}'.rstrip('.')}: {self.problem}"


def spell_out(error: msgspec.ValidationError, spec: Mapping[str, Any], kind: type) -> Mistake:
    """`Expected `int`, got `str` - at `$.training.steps`` -> `training.steps`, `must be a whole number of ...`."""
    what, _, where = str(error).partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    schema, value = _at(schema_of(kind), spec, path)
    if field := _FIELD.fullmatch(what):
        hint = nearest(field[2], schema.get("properties", ()), 1)
        problem = "it is missing" if "missing" in field[1] else f"no such field{hint}"
        return Mistake(f"{path}.{field[2]}".lstrip("."), problem)
    if what.startswith(("Expected", "Invalid enum")) and schema:
        return Mistake(path, f"must be {_allowed(schema, value)}, not {_show(value)}")
    return Mistake(path, f"{what[:1].lower()}{what[1:]}" if what.startswith("Expected") else what)


def _at(schema: Schema, value: Any, path: str) -> tuple[Schema, Any]:
    """What is asked for and what is there; an empty schema inside free-form objects."""
    for part in _PART.findall(path):
        if part.isdecimal() and isinstance(value, list):
            schema, value = schema.get("items", {}), value[int(part)]
        else:
            schema = schema.get("properties", {}).get(part, {})
            value = value.get(part) if isinstance(value, Mapping) else None
    return schema, value


def _allowed(schema: Schema, value: Any) -> str:
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    return f"{_TYPES[schema['type']]}{' and'.join(_limits(schema, value))}"


def _limits(schema: Schema, value: Any) -> Iterator[str]:
    """Upper limits are far away: they are named only to who exceeds them."""
    unit = {"string": " characters", "array": " entries"}.get(schema["type"], "")
    noun = {"string": "Length", "array": "Items"}.get(schema["type"], "imum")
    lowest, highest = schema.get(f"min{noun}"), schema.get(f"max{noun}")
    size = len(value) if isinstance(value, str | list) and unit else value
    if lowest is not None:
        yield f" greater than {lowest:g}" if schema.get("exclusiveMinimum") else f" of at least {lowest}{unit}"
    if highest is not None and isinstance(size, int | float) and size > highest:
        yield f" of at most {highest}{unit}"
    if "pattern" in schema and isinstance(value, str):
        yield f" that matches {schema['pattern']}"


def _show(value: Any) -> str:
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
