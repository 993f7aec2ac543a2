"""The settings in which several specs differ. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any


def flat(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Leaves by their dotted paths; items of a list of named objects by their names."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        where = f"{path}.{key}" if path else key
        if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
            value = {each["name"]: {k: v for k, v in each.items() if k != "name"} for each in value}  # noqa: PLW2901
        if isinstance(value, dict) and value:
            leaves |= flat(value, where)
        else:
            leaves[where] = value
    return leaves


def differences(specs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Every path at which not all are equal, with each one's value; None where it has none."""
    paths = dict.fromkeys(path for spec in specs for path in spec)
    found = {path: [spec.get(path) for spec in specs] for path in paths}
    return {path: values for path, values in found.items() if any(value != values[0] for value in values)}
