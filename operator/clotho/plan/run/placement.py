"""Where Kueue lets the pods of a run go: the node labels and tolerations of the flavours that it assigned."""

from collections.abc import Iterable
from typing import Any

from clotho.api.names import ENVIRONMENT
from clotho.plan.model import Manifest
from clotho.plan.run.components import RunComponent
from clotho.plan.run.situation import Situation
from clotho.plan.workloads import Flavour
from clotho.render.workload import MERGED


def pod_set_name(component: RunComponent) -> str:
    return environment_pod_set(component.name) if component.kind == ENVIRONMENT else component.name


def environment_pod_set(name: str) -> str:
    """Environments may be called like another component."""
    return f"env-{name}"


def place(situation: Situation, component: RunComponent, pod: Manifest) -> Manifest:
    """The pod with what its assignment and the admission checks add. Kueue has matched the flavours with the pod's own
    selector, so there is no conflict."""
    seen = situation.observed.kueue
    found = seen.workload if seen is not None else None
    if seen is None or found is None or not found.is_admitted or found.status.admission is None:
        return pod
    assigned = {each.name: each for each in found.status.admission.pod_set_assignments}
    name = pod_set_name(component) if pod_set_name(component) in assigned else MERGED
    flavours = sorted(set(assigned[name].flavors.values())) if name in assigned else []
    checks = found.status.admission_checks
    updates = [each for check in checks for each in check.pod_set_updates if each.name == name]
    nodes = [seen.flavours.get(flavour, Flavour()) for flavour in flavours]
    labels = [*(each.node_labels for each in nodes), *(each.node_selector for each in updates)]
    tolerations = [*(each.tolerations for each in nodes), *(each.tolerations for each in updates)]
    selector = {key: value for each in labels for key, value in each.items()}
    return _with(pod, selector, _flat(tolerations), {k: v for each in updates for k, v in each.annotations.items()})


def _with(
    pod: Manifest, selector: dict[str, str], tolerations: list[dict[str, Any]], annotations: dict[str, str]
) -> Manifest:
    spec, metadata = dict(pod["spec"]), dict(pod["metadata"])
    if selector:
        spec["nodeSelector"] = spec.get("nodeSelector", {}) | selector
    if tolerations:
        own = spec.get("tolerations", [])
        spec["tolerations"] = [*own, *(each for each in tolerations if each not in own)]
    if annotations:
        metadata["annotations"] = metadata.get("annotations", {}) | annotations
    return pod | {"metadata": metadata, "spec": spec}


def _flat(lists: Iterable[Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [each for one in lists for each in one]
