"""Reads YAML files; what is not YAML is reported with its line and column."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clotho.cli.failure import Exit, Failure


def title(path: Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def read_documents(path: Path) -> list[Any]:
    """All documents of a file, or of standard input for `-`; without empty ones."""
    return documents_of(read_text(path), path)


def read_text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text()
    except OSError as error:
        raise Failure(f"cannot read {title(path)}: {error.strerror}", Exit.USAGE) from error
    except ValueError as error:
        raise Failure(f"{title(path)} is not YAML: {yaml_problem(error)}", Exit.USAGE) from error


def documents_of(text: str, path: Path) -> list[Any]:
    import yaml

    try:
        return [document for document in load_all(text) if document is not None]
    except (yaml.YAMLError, ValueError) as error:
        raise Failure(f"{title(path)} is not YAML: {yaml_problem(error)}", Exit.USAGE) from error


def line_of(text: str, path: Sequence[str]) -> int:
    """Of the key at that path in the first document, or of the nearest one above it."""
    import yaml

    node, line = yaml.compose(text, yaml.SafeLoader), 1
    for part in path:
        found = next((pair for pair in getattr(node, "value", ()) if pair[0].value == part), None)
        if found is None:
            break
        key, node = found
        line = key.start_mark.line + 1
    return line


def load_all(text: str) -> list[Any]:
    """As kubectl reads it: `1e-5` is a number, where YAML 1.1, and so PyYAML, sees text without a decimal point."""
    import re

    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )
    return list(yaml.load_all(text, Loader))


def yaml_problem(error: Exception) -> str:
    """`line 3, column 5: did not find ...`, on one line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
