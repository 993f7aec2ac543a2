"""Run as a script by the interpreter that has atroposlib: writes an environment file's config fields as JSON.

It stands alone on purpose: that interpreter need not have this package.
"""

import importlib.util
import json
import re
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

KEPT = {
    "default",
    "description",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "enum",
}
LENGTHS = {"minItems": "minLength", "maxItems": "maxLength"}


def field_schema(field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Of pydantic's JSON Schema for one field, what the catalogue shows: type, default, limits, choices."""
    options = [_resolved(option, definitions) for option in field.get("anyOf", field.get("allOf", [field]))]
    found: dict[str, Any] = {"type": " | ".join(dict.fromkeys(str(each.get("type", "any")) for each in options))}
    for part in (*options, field):
        found |= {key: value for key, value in part.items() if key in KEPT and value is not None}
        found |= {LENGTHS[key]: value for key, value in part.items() if key in LENGTHS}
        if "const" in part:
            found["enum"] = [part["const"]]
    return found


def _resolved(field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    target: dict[str, Any] = definitions.get(str(field.get("$ref", "")).rpartition("/")[2], {})
    known = {key: value for key, value in target.items() if key in ("type", "enum", "const")}
    return {**known, **field}


def plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, str | int | float | bool | list | dict | type(None)) else str(value)


def load(path: str) -> ModuleType:
    """Import the file as if it were run: its neighbours, not this script's, are on the path."""
    sys.path[0] = str(Path(path).resolve().parent)
    spec = importlib.util.spec_from_file_location("environment_under_description", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def schemas(kind: Any) -> dict[str, dict[str, Any]]:
    """By field; a config with types that have no JSON Schema is described by the names of its Python types."""
    try:
        schema = kind.model_json_schema()
    except Exception:
        return {
            name: {"type": getattr(field.annotation, "__name__", str(field.annotation))}
            for name, field in kind.model_fields.items()
        }
    definitions = schema.get("$defs", {})
    return {name: field_schema(field, definitions) for name, field in schema["properties"].items()}


def defaults(kind: Any) -> Any:
    """The config that the environment starts with; its class's where `config_init` fails; else None."""
    for make in (lambda: kind.config_init()[0], kind.env_config_cls):
        try:
            return make()
        except Exception:  # noqa: S112 - whatever the environment's code raises
            continue
    return None


def describe(path: str) -> dict[str, object]:
    module = load(path)
    base = getattr(sys.modules.get("atroposlib.envs.base"), "BaseEnv", None)  # imported by every environment file
    classes: list[Any] = [
        value
        for value in vars(module).values()
        if base and isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    ]
    if not classes:
        raise SystemExit(f"{path} has no subclass of BaseEnv")
    started = re.findall(r"(\w+)\.cli\(", Path(path).read_text())
    kind = next((each for each in classes if each.__name__ in started), classes[-1])
    config = defaults(kind)
    fields = schemas(kind.env_config_cls if config is None else type(config))
    if config is not None:
        fields = {name: {**schema, "default": plain(getattr(config, name, None))} for name, schema in fields.items()}
    return {
        "name": kind.name or kind.__name__.lower(),
        "className": kind.__name__,
        "description": (kind.__doc__ or "").strip().partition("\n")[0],
        "fields": [{**schema, "name": name} for name, schema in fields.items()],
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(describe(sys.argv[1]), default=str))
