"""Whether an object in the cluster still is what we render: compared by the fields that we render, and no others."""

from collections.abc import Mapping
from typing import Any

from clotho.plan.model import Apply, Manifest, ObjectKey, ObjectSeen
from clotho.plan.ownership import is_marked


def repair(key: ObjectKey, rendered: Manifest, objects: Mapping[ObjectKey, ObjectSeen]) -> tuple[Apply, ...]:
    """What makes the object as it was rendered: nothing where it is so, or where it is being deleted."""
    seen = objects.get(key)
    is_fine = seen is not None and (seen.is_terminating or not has_drifted(seen, rendered))
    return () if is_fine else (Apply(key=key, manifest=rendered),)


def has_drifted(seen: ObjectSeen, rendered: Manifest) -> bool:
    return not is_marked(seen.labels, seen.owners, rendered["metadata"]) or any(
        _differs(name, seen.spec.get(name), value) for name, value in rendered["spec"].items()
    )


def _differs(name: str, live: Any, wanted: Any) -> bool:
    if name == "ports":  # of a Service: others may add ports of their own, which server-side apply leaves alone
        return not all(any(port.items() <= each.items() for each in live or ()) for port in wanted)
    return (live or None) != (wanted or None)  # the server leaves out what is empty
