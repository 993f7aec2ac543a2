"""The forms of an entry: what an environment image can be asked to run."""

from typing import Final

BUILTIN: Final = ("letters",)
LIBRARIES: Final = ("atropos", "reasoning-gym", "verifiers")
FORMS: Final = (
    "letters, module:Class, path/to/file.py[:Class], atropos:path/to/file.py, reasoning-gym:<task> or verifiers:<name>"
)


def is_entry(text: str) -> bool:
    """It has the form of one; whether there is such a file or module, only the image knows."""
    name, colon, rest = text.partition(":")
    return text in BUILTIN or name.endswith(".py") or bool(name and colon and rest)
