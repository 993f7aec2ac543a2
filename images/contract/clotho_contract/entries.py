"""The forms of an entry: what an environment image can be asked to run."""

from collections.abc import Collection
from typing import Final

from clotho_contract.nearest import nearest

BUILTIN: Final = ("letters",)
REASONING_GYM: Final = "reasoning-gym"
LIBRARIES: Final = ("atropos", REASONING_GYM, "verifiers")
FORMS: Final = (
    "letters, module:Class, path/to/file.py[:Class], atropos:path/to/file.py, reasoning-gym:<task> or verifiers:<name>"
)


def is_entry(text: str) -> bool:
    """It has the form of one; whether there is such a file or module, only the image knows."""
    name, colon, rest = text.partition(":")
    return text in BUILTIN or name.endswith(".py") or bool(name and colon and rest)


def file_of(entry: str) -> str:
    """The Python file that it names; empty when it names none."""
    path, _, _ = entry.removeprefix("atropos:").partition(":")
    return path if path.endswith(".py") else ""


def task_problem(task: str, tasks: Collection[str]) -> str:
    """Why reasoning-gym has no such task, with those of similar names, else all of them; empty when it has."""
    if task in tasks:
        return ""
    hint = nearest(task, tasks) or f"; its tasks: {', '.join(sorted(tasks))}"
    return f"reasoning-gym has no task {task!r}{hint}"
