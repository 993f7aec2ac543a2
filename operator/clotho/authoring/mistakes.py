"""The mistakes in a spec in plain words: where they are, what may stand there, and what does."""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from clotho.api.forms import form_of
from clotho.api.schema import Schema, schema_of
from clotho_contract.nearest import nearest

_SHOWN: Final = 60
_MISSING: Final = "it is missing"
_MOST: Final = 20  # mistakes that are named at once
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


def mistakes_in(spec: Mapping[str, Any], kind: type) -> tuple[Mistake, ...]:
    """All of them: something valid takes the place of what is wrong, and the spec is read again."""
    rest = copy.deepcopy(dict(spec))
    found: list[Mistake] = []
    while len(found) < _MOST:
        try:
            msgspec.convert(rest, kind)
            break
        except msgspec.ValidationError as error:
            mistake = spell_out(error, rest, kind)
        place = _PART.findall(mistake.path)
        if any(_PART.findall(each.path)[: len(place)] == place for each in found):
            break  # it was taken out, and the spec needs it
        found.append(mistake)
        if not _replace(rest, place, kind):
            break
    return tuple(each for each in found if not _is_misspelt(each, found))


def _is_misspelt(missing: Mistake, found: Iterable[Mistake]) -> bool:
    """The field is there under another name, which is a mistake of its own."""
    parent, _, field = missing.path.rpartition(".")
    return missing.problem == _MISSING and any(
        each.path.rpartition(".")[0] == parent and each.problem.endswith(f" mean {field}?") for each in found
    )


def _replace(spec: Any, place: list[str], kind: type) -> bool:
    """Puts something valid there, or nothing; whether it could."""
    schema, _ = _at(schema_of(kind), spec, ".".join(place))
    valid, holder = _valid(schema), spec
    for part in place[:-1]:
        holder = holder[int(part)] if isinstance(holder, list) else holder.get(part)
    if not place or not isinstance(holder, dict | list) or (isinstance(holder, list) and valid is None):
        return False  # without an entry, the others of a list would have other places
    if isinstance(holder, list):
        holder[int(place[-1])] = valid
    elif valid is not None:
        holder[place[-1]] = valid
    else:
        holder.pop(place[-1], None)
    return True


def _valid(schema: Schema) -> Any:
    """The simplest value, where there is one."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "integer" | "number":
            return schema.get("minimum", 0) + (1 if schema.get("exclusiveMinimum") else 0)
        case "boolean":
            return False
        case "string" if "pattern" not in schema:
            return "x" * schema.get("minLength", 0)
    return None


def spell_out(error: msgspec.ValidationError, spec: Mapping[str, Any], kind: type) -> Mistake:
    """`Expected `int`, got `str` - at `$.training.steps`` -> `training.steps`, `must be a whole number of ...`."""
    what, _, where = str(error).partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    schema, value = _at(schema_of(kind), spec, path)
    if field := _FIELD.fullmatch(what):
        hint = nearest(field[2], schema.get("properties", ()), 1)
        problem = _MISSING if "missing" in field[1] else f"no such field{hint}"
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
    if isinstance(value, str) and (words := form_of(schema.get("pattern", ""))):
        return words
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
