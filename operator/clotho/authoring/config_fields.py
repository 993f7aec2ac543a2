"""A config held against the fields that an environment has described. Pure: the operator and all tools say the same."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from clotho.authoring.run_decided import DECIDED_BY
from clotho_contract.description import ConfigField
from clotho_contract.nearest import nearest

_SHOWN: Final = 60
_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list | tuple),
    "object": lambda value: isinstance(value, Mapping),
    "null": lambda value: value is None,
}


def problems(
    config: Mapping[str, Any],
    fields: Sequence[ConfigField],
    *,
    omitted: int = 0,
    written: Mapping[str, Any] = {},
) -> tuple[str, ...]:
    """Everything that is wrong, at once: each names the field, the value and what is allowed.

    `omitted`: fields that exist but were left out of the description; then an unknown name may well be right.
    `written`: what the run will write into fields that it decides, where that is known.
    """
    required = [field.name for field in fields if field.required and not field.fixed]
    missing = [f"config.{name}: missing; it has no default" for name in required if name not in config]
    return (*wrong_values(config, fields, omitted, written), *missing)


def wrong_values(
    config: Mapping[str, Any], fields: Sequence[ConfigField], omitted: int = 0, written: Mapping[str, Any] = {}
) -> Iterator[str]:
    """The same for a config that others may still add to."""
    known = {field.name: field for field in fields}
    for name, value in config.items():
        if name in known:
            if known[name].fixed:
                yield f"config.{name}: {why_fixed(known[name], written)}"
            elif problem := value_problem(known[name], value):
                yield f"config.{name}: {problem}"
    if not omitted:
        yield from _unknown([name for name in config if name not in known], known)


def why_fixed(field: ConfigField, written: Mapping[str, Any]) -> str:
    """Who decides it, and to what, where that is known."""
    if field.name not in DECIDED_BY:
        return f"it is locked to {_show(field.default)}, which the entry decides"
    value = written.get(field.name)
    locked = "and cannot be set" if value is None else f"and locked to {_show(value)}"
    return f"it is decided by the run ({DECIDED_BY[field.name]}) {locked}"


def value_problem(field: ConfigField, value: Any) -> str | None:
    """What is wrong with this value for this field; None when nothing is."""
    kinds = field.type.split(" | ")
    if all(kind in _TYPES for kind in kinds) and not any(_TYPES[kind](value) for kind in kinds):
        return f"{_show(value)} is not of type {field.type}"
    if field.enum and value not in field.enum and not (value is None and "null" in kinds):
        return f"{_show(value)} is not one of {', '.join(_show(choice) for choice in field.enum)}"
    if _TYPES["number"](value):
        return _range_problem(field, value)
    if isinstance(value, str | list):
        return _length_problem(field, value)
    return None


def _range_problem(field: ConfigField, value: float) -> str | None:
    if field.minimum is not None and value < field.minimum:
        return f"{_show(value)} is below {field.minimum:g}"
    if field.exclusive_minimum is not None and value <= field.exclusive_minimum:
        return f"{_show(value)} is not greater than {field.exclusive_minimum:g}"
    if field.maximum is not None and value > field.maximum:
        return f"{_show(value)} is above {field.maximum:g}"
    if field.exclusive_maximum is not None and value >= field.exclusive_maximum:
        return f"{_show(value)} is not less than {field.exclusive_maximum:g}"
    return None


def _length_problem(field: ConfigField, value: str | list[Any]) -> str | None:
    if field.min_length is not None and len(value) < field.min_length:
        return f"{_show(value)} is shorter than {field.min_length}"
    if field.max_length is not None and len(value) > field.max_length:
        return f"{_show(value)} is longer than {field.max_length}"
    return None


def _unknown(names: Sequence[str], known: Mapping[str, ConfigField]) -> Iterator[str]:
    """The first comes with all that there are: once is enough, and a status has its limits."""
    settable = sorted(name for name, field in known.items() if not field.fixed)
    for number, name in enumerate(names):
        hint = nearest(name, settable)
        all_known = f"{' K' if hint else '; k'}nown fields: {', '.join(settable)}" if number == 0 else ""
        yield f"config.{name}: unknown field{hint}{all_known}"


def _show(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
