"""Bounds on what a pod can write to its node's disk: a sizeLimit on every emptyDir, a limit on every container."""

import math
from typing import Any, Final

from clotho.render.containers import MAIN, Manifest
from clotho.render.quantity import quantity_bytes

_DEFAULT_SIZE: Final = "10Gi"  # of an emptyDir that a template adds without a limit of its own
_LOGS_BYTES: Final = 2 * 1024**3  # the container's logs and its writable layer, where it has one
_RESOURCE: Final = "ephemeral-storage"
_REQUEST: Final = "0"  # explicit, else it would equal the limit; nodes without local storage isolation offer none


def scratch(name: str, size: str) -> Manifest:
    return {"name": name, "emptyDir": {"sizeLimit": size}}


def bound_disk(spec: Manifest) -> Manifest:
    """The kubelet evicts a pod that writes more than the limits of its containers add up to, emptyDirs included."""
    volumes = [_bounded(volume) for volume in spec.get("volumes", ())]
    on_disk = sum(_size(volume["emptyDir"]) for volume in volumes if isinstance(volume.get("emptyDir"), dict))
    bounded = spec | ({"volumes": volumes} if volumes else {})
    for kind in ("initContainers", "containers"):
        if kind in spec:
            bounded[kind] = [
                _limited(each, _LOGS_BYTES + (on_disk if each["name"] == MAIN else 0)) for each in spec[kind]
            ]
    return bounded


def _bounded(volume: Manifest) -> Manifest:
    source = volume.get("emptyDir")
    if not isinstance(source, dict) or "sizeLimit" in source:
        return volume
    return volume | {"emptyDir": source | {"sizeLimit": _DEFAULT_SIZE}}


def _size(source: Manifest) -> int:
    """In bytes; nothing for what is kept in memory, and for sizes that only the API server can judge."""
    if source.get("medium"):
        return 0
    try:
        return quantity_bytes(str(source["sizeLimit"]))
    except (ArithmeticError, ValueError):
        return 0


def _limited(container: Manifest, limit_bytes: int) -> Manifest:
    resources = container.get("resources") or {}
    if not isinstance(resources, dict):
        return container
    limit = f"{math.ceil(limit_bytes / 1024**2)}Mi"
    bounds: dict[str, Any] = {"limits": {_RESOURCE: limit}, "requests": {_RESOURCE: _REQUEST}}
    given = {kind: value for kind, value in resources.items() if isinstance(value, dict)}
    return container | {"resources": resources | {kind: bounds[kind] | given.get(kind, {}) for kind in bounds}}
