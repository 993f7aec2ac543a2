"""Run as a script by the interpreter that has atroposlib: prints an environment file's config fields as JSON.

It stands alone on purpose: that interpreter need not have this package.
"""

import importlib.util
import json
import sys
from enum import Enum
from types import ModuleType
from typing import Any

MARKER = "CLOTHO-DESCRIPTION "  # environment files may print while they are imported


def plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, str | int | float | bool | list | dict | type(None)) else str(value)


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment_under_description", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
    kind = classes[-1]
    config, _ = kind.config_init()
    return {
        "name": kind.name or kind.__name__.lower(),
        "class": kind.__name__,
        "description": (kind.__doc__ or "").strip().partition("\n")[0],
        "fields": [
            {
                "name": name,
                "type": getattr(field.annotation, "__name__", None) or str(field.annotation),
                "description": field.description or "",
                "default": plain(getattr(config, name)),
                "required": False,
                "fixed": False,
            }
            for name, field in type(config).model_fields.items()
        ],
    }


if __name__ == "__main__":
    print(MARKER + json.dumps(describe(sys.argv[1]), default=str))
