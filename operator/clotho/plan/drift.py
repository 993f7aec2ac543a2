"""Whether an object in the cluster still is what we render: compared by the fields that we render, and no others."""

from collections.abc import Mapping
from typing import Any

from clotho.plan.model import Manifest, ObjectSeen


def has_drifted(seen: ObjectSeen, rendered: Manifest) -> bool:
    labels: Mapping[str, str] = rendered["metadata"]["labels"]
    is_labelled = labels.items() <= seen.labels.items()
    return not is_labelled or any(
        _differs(name, seen.spec.get(name), value) for name, value in rendered["spec"].items()
    )


def _differs(name: str, live: Any, wanted: Any) -> bool:
    if name == "ports":  # of a Service: others may add ports of their own, which server-side apply leaves alone
        return not all(any(port.items() <= each.items() for each in live or ()) for port in wanted)
    return (live or None) != (wanted or None)  # the server leaves out what is empty
