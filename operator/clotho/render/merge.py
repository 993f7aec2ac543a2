"""Strategic merge of a person's partial pod over the rendered one, as `kubectl patch` would do it."""

from collections.abc import Mapping
from typing import Any, Final

_MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
_DIRECTIVE: Final = "$patch"
_FREE_NAMES: Final = frozenset(  # maps whose keys are people's own: a label may well be called `env`
    {"annotations", "labels", "matchLabels", "nodeSelector", "options", "volumeAttributes"}
)


class TemplateError(Exception):
    """A template does not have the shape of a pod; the message says where."""


def merge(base: dict[str, Any], patch: dict[str, Any], path: str = "template") -> dict[str, Any]:
    """Maps are merged, lists with a merge key element by element, other lists replaced; null removes a field.

    `base` is one of ours, or was checked.
    """
    check(patch, path)
    return _merged(base, patch, path, _MERGE_KEYS)


def check(template: dict[str, Any], path: str) -> None:
    """Lists with a merge key are what merging relies on, also where there is nothing to merge them with as yet."""
    for key, value in template.items():
        where = f"{path}.{key}"
        if key in _MERGE_KEYS and value is not None:
            _check_list(value, _MERGE_KEYS[key], where)
        elif isinstance(value, dict) and key not in _FREE_NAMES:
            check(value, where)


def has_containers(template: dict[str, Any]) -> bool:
    """Then they may have another image or command than the rendered ones."""
    pod = template.get("spec")
    return isinstance(pod, dict) and "containers" in pod


def _check_list(elements: Any, key: str, path: str) -> None:
    if not isinstance(elements, list):
        raise TemplateError(f"{path}: expected a list, got {_describe(elements)}")
    for index, element in enumerate(elements):
        where = f"{path}[{index}]"
        if not isinstance(element, dict):
            raise TemplateError(f"{where}: expected an object, got {_describe(element)}")
        name = element.get(key)
        if name is None:
            raise TemplateError(f"{where}: {key} is missing; it tells which element is meant")
        if not isinstance(name, str | int):
            raise TemplateError(f"{where}.{key}: expected a string or a number, got {_describe(name)}")
        check(element, where)


def _merged(base: dict[str, Any], patch: dict[str, Any], path: str, merge_keys: Mapping[str, str]) -> dict[str, Any]:
    if patch.get(_DIRECTIVE) == "replace":
        kept = {key: value for key, value in patch.items() if key != _DIRECTIVE and value is not None}
        for key, value in kept.items():
            _check_same_shape(base.get(key), value, f"{path}.{key}")
        return kept
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif key in merge_keys:
            merged[key] = _merged_list(base.get(key) or [], value, merge_keys[key], f"{path}.{key}")
        else:
            merged[key] = _merged_value(base.get(key), value, f"{path}.{key}", {} if key in _FREE_NAMES else merge_keys)
    return merged


def _merged_value(old: Any, new: Any, path: str, merge_keys: Mapping[str, str]) -> Any:
    _check_same_shape(old, new, path)
    return _merged(old, new, path, merge_keys) if isinstance(old, dict) else new


def _merged_list(old: list[dict[str, Any]], new: list[dict[str, Any]], key: str, path: str) -> list[dict[str, Any]]:
    merged = {element[key]: element for element in old}
    for index, element in enumerate(new):
        name = element[key]
        if element.get(_DIRECTIVE) == "delete":
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name, {}), element, f"{path}[{index}]", _MERGE_KEYS)
    return list(merged.values())


def _check_same_shape(old: Any, new: Any, path: str) -> None:
    for shape in (dict, list):
        if isinstance(old, shape) and not isinstance(new, shape):
            raise TemplateError(f"{path}: expected {_describe(old)}, got {_describe(new)}")


def _describe(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)
