"""How deep a spec may be nested: free-form objects (`config`, `template`) have no schema that bounds them."""

from typing import Any, Final

MAX_DEPTH: Final = 32  # the deepest field of a pod template is 13 levels below spec
PROBLEM: Final = f"it is nested more than {MAX_DEPTH} levels deep; flatten config or template"


def is_too_deep(spec: Any) -> bool:
    """Level by level and without recursion, so that no input is too deep for the check itself."""
    level = [spec]
    for _ in range(MAX_DEPTH + 1):
        level = [child for value in level for child in _children(value)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
