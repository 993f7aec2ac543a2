"""A run as Kueue sees it: one Workload with a pod set for each component."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

import msgspec
from msgspec import Struct

from clotho.api.metadata import Metadata
from clotho.api.names import (
    FINGERPRINT_ANNOTATION,
    KUEUE_GROUP,
    KUEUE_VERSION,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    REPLICAS_ANNOTATION,
)
from clotho.render.containers import MAIN, Manifest
from clotho.render.metadata import object_metadata
from clotho.render.names import base_name
from clotho.render.quantity import quantity

_API_VERSION: Final = f"{KUEUE_GROUP}/{KUEUE_VERSION}"
POD_SET_LIMIT: Final = 10  # of Kueue's CRD
MERGED: Final = "environments"  # the pod set of the environments that have none of their own
_SCHEDULING: Final = ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "overhead")
_NOTHING: Final = Decimal(0)
_CONTAINER: Final = ("name", "image", "restartPolicy")

Amounts = dict[str, Decimal]  # by resource


class PodSet(Struct, frozen=True, kw_only=True):
    name: str
    count: int
    pod: Manifest


def workload(run: Metadata, pod_sets: Sequence[PodSet], *, priority: int | None, is_active: bool) -> Manifest:
    """`priority`: the value of the class that the run names, which Kueue updates when the class changes.

    Without Kueue's finalizer, so that deleting it gives the quota back at once.
    """
    spec: Manifest = {
        "queueName": run.labels.get(QUEUE_LABEL, ""),
        "podSets": [_pod_set(each) for each in _merged(tuple(pod_sets))],
    }
    name = run.labels.get(PRIORITY_LABEL, "")
    asked = msgspec.json.encode((spec, name), order="sorted")
    if priority is not None:
        spec |= {
            "priorityClassRef": {"group": KUEUE_GROUP, "kind": "WorkloadPriorityClass", "name": name},
            "priority": priority,
        }
    metadata = object_metadata(run, base_name(run))
    metadata["annotations"] = {
        FINGERPRINT_ANNOTATION: hashlib.blake2b(asked, digest_size=8).hexdigest(),
        REPLICAS_ANNOTATION: msgspec.json.encode({each.name: each.count for each in pod_sets}).decode(),
    }
    return {
        "apiVersion": _API_VERSION,
        "kind": "Workload",
        "metadata": metadata,
        "spec": spec | {"active": is_active},
    }


def workload_condition(run: Metadata, condition: Mapping[str, str]) -> Manifest:
    """The status of the run's Workload with this condition alone: the others are Kueue's."""
    return {
        "apiVersion": _API_VERSION,
        "kind": "Workload",
        "metadata": {"name": base_name(run), "namespace": run.namespace},
        "status": {"conditions": [dict(condition)]},
    }


def _pod_set(pod_set: PodSet) -> Manifest:
    """With what Kueue decides by, and nothing else of the pod: variables and volumes are no concern of Kueue's."""
    spec = pod_set.pod["spec"]
    template = {key: spec[key] for key in _SCHEDULING if spec.get(key)}
    for kind in ("initContainers", "containers"):
        if kind in spec:
            template[kind] = [_container(each) for each in spec[kind]]
    return {"name": pod_set.name, "count": pod_set.count, "template": {"spec": template}}


def _container(container: Manifest) -> Manifest:
    return {key: container[key] for key in _CONTAINER if key in container} | {
        "resources": {"requests": _requests(container)}
    }


def _requests(container: Manifest) -> dict[str, str | int]:
    """What is not asked for equals the limit, as the API server fills it in. A request of 0, as for the disk that
    every pod of ours is bounded to, is left out: few queues have quota for it, and the others would admit no run."""
    resources = container.get("resources") or {}
    asked = {**resources.get("limits", {}), **resources.get("requests", {})}
    return {name: amount for name, amount in asked.items() if quantity(amount)}


def _merged(pod_sets: tuple[PodSet, ...]) -> tuple[PodSet, ...]:
    """At most as many as Kueue takes: the last, environments, become one with the largest requests of each."""
    if len(pod_sets) <= POD_SET_LIMIT:
        return pod_sets
    kept, rest = pod_sets[: POD_SET_LIMIT - 1], pod_sets[POD_SET_LIMIT - 1 :]
    each_asks = [_needs(each.pod["spec"]) for each in rest]
    names = sorted({name for asked in each_asks for name in asked})
    most = {name: f"{max(asked.get(name, _NOTHING) for asked in each_asks):f}" for name in names}
    container = {"name": MAIN, "image": rest[0].pod["spec"]["containers"][0]["image"], "resources": {"requests": most}}
    merged = PodSet(name=MERGED, count=sum(each.count for each in rest), pod={"spec": {"containers": [container]}})
    return (*kept, merged)


def _needs(spec: Manifest) -> Amounts:
    """Of a pod, as the scheduler counts: what runs at the same time is added, init containers run one by one."""
    first = spec.get("initContainers", ())
    sidecars = [each for each in first if each.get("restartPolicy") == "Always"]
    running = _sum(_amounts(each) for each in (*spec["containers"], *sidecars))
    peaks = [running, *(_amounts(each) for each in first if each not in sidecars)]
    return {name: max(peak.get(name, _NOTHING) for peak in peaks) for name in {name for peak in peaks for name in peak}}


def _amounts(container: Manifest) -> Amounts:
    return {name: quantity(amount) for name, amount in _requests(container).items()}


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total.get(name, _NOTHING) + amount
    return total
