"""`--set FIELD=VALUE`, the value as YAML, and what it changes in a spec."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clotho.authoring.changes import with_change
from clotho.authoring.draft import RefusedEditError
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
        try:
            spec = with_change(spec, name, value)
        except RefusedEditError as refused:
            fields = "" if refused.has_guess else listed("fields", refused.details["available_fields"])
            raise Failure(f"--set {name}: {refused}{fields}", Exit.USAGE) from refused
    return spec
