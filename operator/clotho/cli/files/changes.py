"""`--set FIELD=VALUE`, the value as YAML."""

from __future__ import annotations

from typing import Any

from clotho.cli.failure import Exit, Failure
from clotho.cli.files.documents import yaml_problem


def read_change(text: str) -> tuple[str, Any]:
    import yaml

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Failure(f"--set {text}: write it as FIELD=VALUE", Exit.USAGE)
    try:
        return name, yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        raise Failure(f"--set {name}: the value is not YAML: {yaml_problem(error)}", Exit.USAGE) from error
