"""Tools from whatever the user has: a schema with a function, a documented function, or an object's public methods."""

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec

from clotho_trainer.failures import TrainerError
from clotho_trainer.rollouts.inline.entries import brief

_NOT_TOOLS = frozenset({"reset", "get_reward"})  # of an environment
_GOOGLE = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_NUMPY = re.compile(r"^(\w+)\s*:\s*\S.*$")
_SPHINX = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.+)$")
_SECTION = re.compile(r"^\s*(args|arguments|parameters|params|returns?|raises|yields|examples?|notes?)\s*:?\s*$", re.I)


@dataclass(frozen=True)
class Tool:
    name: str
    schema: Mapping[str, Any]  # as OpenAI writes it: {type: function, function: {name, description, parameters}}
    function: Callable[..., Any]

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """The result as text. Whatever goes wrong raises, and the policy gets the error as the result."""
        converted = _converted(self.function, arguments)
        inspect.signature(self.function).bind(**converted)
        if inspect.iscoroutinefunction(self.function):
            result = await self.function(**converted)
        else:
            result = await asyncio.to_thread(self.function, **converted)  # it may take its time
        return result if isinstance(result, str) else json.dumps(result, default=str)


def tools_from(given: Any, where: str) -> list[Tool]:
    """A function, a {schema, function} pair, or a list of them."""
    if isinstance(given, Sequence) and not isinstance(given, str) and not _is_pair(given):
        return [tool for entry in given for tool in tools_from(entry, where)]
    if isinstance(given, Mapping) and {"schema", "function"} <= set(given):
        return [_from_schema(given["schema"], given["function"], where)]
    if _is_pair(given):
        return [_from_schema(given[0], given[1], where)]
    if callable(given) and not inspect.isclass(given):
        return [from_function(given, where)]
    raise TrainerError(
        "InvalidConfig", f"{where}: {given!r} is no tool; give a function, or an object with schema and function"
    )


def methods_of(environment: Any, where: str) -> list[Tool]:
    names = [name for name in dir(environment) if not name.startswith("_") and name not in _NOT_TOOLS]
    methods = [getattr(environment, name) for name in names if inspect.isroutine(getattr(environment, name))]
    if not methods:
        raise TrainerError(
            "InvalidConfig", f"{where}: {type(environment).__name__} has no public methods to use as tools"
        )
    return [from_function(method, where) for method in methods]


def from_function(function: Callable[..., Any], where: str) -> Tool:
    name = getattr(function, "__name__", "") or type(function).__name__
    described = _parameter_descriptions(inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    required: list[str] = []
    hints = _hints(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise TrainerError("InvalidConfig", f"{where}: {name} takes *{parameter.name}; give it a schema instead")
        schema = _type_schema(hints.get(parameter.name))
        if parameter.name in described:
            schema["description"] = described[parameter.name]
        properties[parameter.name] = schema
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    body = {"name": name, "description": _summary(inspect.getdoc(function) or ""), "parameters": parameters}
    return Tool(name, {"type": "function", "function": body}, function)


def _is_pair(given: Any) -> bool:
    return isinstance(given, Sequence) and len(given) == 2 and isinstance(given[0], Mapping) and callable(given[1])


def _from_schema(schema: Mapping[str, Any], function: Any, where: str) -> Tool:
    body = schema.get("function", schema)
    name = body.get("name") if isinstance(body, Mapping) else None
    if not isinstance(name, str) or not isinstance(body.get("parameters", {}), Mapping):
        raise TrainerError("InvalidConfig", f"{where}: the schema needs a name and, as an object, parameters")
    if not callable(function):
        raise TrainerError("InvalidConfig", f"{where}: the function of {name} cannot be called")
    complete = {"description": "", "parameters": {"type": "object", "properties": {}}, **body}
    return Tool(name, {"type": "function", "function": complete}, function)


def _converted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """To the types the function declares: models write "3" where 3 is meant."""
    hints = _hints(function)
    return {
        name: msgspec.convert(value, hints[name], strict=False) if _is_convertible(hints.get(name)) else value
        for name, value in arguments.items()
    }


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        return {}


def _is_convertible(hint: Any) -> bool:
    return hint is not None and bool(_type_schema(hint))


def _type_schema(hint: Any) -> dict[str, Any]:
    """Empty, which allows anything, for types that JSON does not have."""
    if hint is None:
        return {}
    try:
        schema: dict[str, Any] = msgspec.json.schema(hint)
    except (TypeError, msgspec.MsgspecError):
        return {}
    definitions = schema.pop("$defs", {})
    reference = schema.get("$ref", "")
    return dict(definitions.get(reference.rpartition("/")[2], {})) if reference else schema


def _summary(documentation: str) -> str:
    """Everything before the first section of parameters."""
    lines: list[str] = []
    for line in documentation.splitlines():
        if _SECTION.match(line) or line.strip().startswith(":"):
            break
        lines.append(line)
    return " ".join(" ".join(lines).split())


def _parameter_descriptions(documentation: str) -> dict[str, str]:
    """From docstrings in Google's, NumPy's and Sphinx's style."""
    found: dict[str, str] = {}
    lines = documentation.splitlines()
    section, previous = "", ""
    for line in lines:
        if sphinx := _SPHINX.match(line):
            found[sphinx[1]] = sphinx[2].strip()
        elif heading := _SECTION.match(line):
            section, previous = heading[1].lower(), ""
        elif section in ("args", "arguments", "parameters", "params"):
            previous = _read_parameter(line, previous, found)
    return found


def _read_parameter(line: str, previous: str, found: dict[str, str]) -> str:
    """The parameter that the line is about."""
    if not line.strip() or set(line.strip()) == {"-"}:
        return previous
    is_indented = line[0].isspace()
    if not is_indented and (numpy := _NUMPY.match(line)):
        return numpy[1]
    if is_indented and not previous and (google := _GOOGLE.match(line)):
        found[google[1]] = google[2].strip()
        return ""
    if previous:
        found[previous] = f"{found[previous]} {line.strip()}" if previous in found else line.strip()
    return previous


def failure_text(error: BaseException) -> str:
    """What the policy reads instead of a result."""
    return json.dumps({"error": brief(error)})
