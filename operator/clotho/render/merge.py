"""Strategic merge of a person's partial pod over the rendered one, as `kubectl patch` would do it."""

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


class TemplateError(Exception):
    """A template does not have the shape of a pod; the message says where."""


def merge(base: dict[str, Any], patch: dict[str, Any], path: str = "template") -> dict[str, Any]:
    """Maps are merged, lists with a merge key element by element, other lists replaced; null removes a field."""
    if patch.get(_DIRECTIVE) == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_value(base.get(key), value, key, f"{path}.{key}")
    return merged


def _merge_value(old: Any, new: Any, key: str, path: str) -> Any:
    if key in _MERGE_KEYS:
        return _merge_list(old or [], new, _MERGE_KEYS[key], path)
    if isinstance(old, dict):
        if not isinstance(new, dict):
            raise TemplateError(f"{path}: expected an object, got {_describe(new)}")
        return merge(old, new, path)
    if isinstance(old, list) and not isinstance(new, list):
        raise TemplateError(f"{path}: expected a list, got {_describe(new)}")
    return new


def _merge_list(old: list[dict[str, Any]], new: Any, key: str, path: str) -> list[dict[str, Any]]:
    if not isinstance(new, list):
        raise TemplateError(f"{path}: expected a list, got {_describe(new)}")
    merged = {element[key]: element for element in old}
    for index, element in enumerate(new):
        where = f"{path}[{index}]"
        if not isinstance(element, dict):
            raise TemplateError(f"{where}: expected an object, got {_describe(element)}")
        if key not in element:
            raise TemplateError(f"{where}: {key} is missing; it tells which element is meant")
        if element.get(_DIRECTIVE) == "delete":
            merged.pop(element[key], None)
        else:
            merged[element[key]] = merge(merged.get(element[key], {}), element, where)
    return list(merged.values())


def _describe(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)
