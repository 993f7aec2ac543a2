"""YAML that people wrote: read, or one sentence on where it stops being YAML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from clotho.cli.failure import Exit, Failure


def title(path: Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def read_documents(path: Path) -> list[Any]:
    """All documents of a file, or of standard input for `-`; empty ones do not count."""
    import yaml

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except OSError as error:
        raise Failure(f"cannot read {title(path)}: {error.strerror}", Exit.USAGE) from error
    except (yaml.YAMLError, ValueError) as error:
        raise Failure(f"{title(path)} is not YAML: {yaml_problem(error)}", Exit.USAGE) from error


def yaml_problem(error: Exception) -> str:
    """`line 3, column 5: did not find ...`, on one line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
