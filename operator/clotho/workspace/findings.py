"""What a check of a cluster found. Pure: facts as the API server has them become findings, each with what to do."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from msgspec import Struct

from clotho.plan.wording import counted

State = Literal["ok", "missing", "problem", "warning", "optional", "unknown"]
Facts = Mapping[str, Any]

SKEW_SECONDS: Final = 5.0  # timestamps of the API server are whole seconds
LEASE_SECONDS: Final = 60.0  # kubelets renew theirs every 10 s
PULL_ERRORS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_UPGRADE: Final = "upgrade the chart, or install the release of clotho that matches it"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_ENFORCED: Final = "pod-security.kubernetes.io/enforce"


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    what: str
    state: State
    detail: str = ""
    fix: str = ""


def version_finding(own: str, operator: str) -> Finding:
    if not operator:
        return Finding(what="version", state="unknown", detail="the operator's Deployment has no version label")
    if operator == own:
        return Finding(what="version", state="ok", detail=f"operator and command line are {own}")
    detail = f"the operator is {operator}, this command line {own}"
    return Finding(what="version", state="warning", detail=detail, fix=_UPGRADE)


def schema_finding(kind: str, ours: Facts, installed: Facts) -> Finding:
    """Fields that the installed CRD lacks would be dropped in silence."""
    lacking = sorted(each for each in set(_paths(ours)) - set(_paths(installed)) if not each.startswith("metadata"))
    if not lacking:
        return Finding(what=f"CRD {kind}", state="ok", detail="has every field of this release")
    more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
    detail = f"lacks {', '.join(lacking[:3])}{more}"
    return Finding(what=f"CRD {kind}", state="problem", detail=detail, fix=_UPGRADE)


def _paths(schema: Facts, before: str = "") -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{before}{name}"
        yield from _paths(inner, f"{before}{name}.")
    if isinstance(items := schema.get("items"), Mapping):
        yield from _paths(items, f"{before}[].")


def gpu_finding(resource: str, nodes: Sequence[Facts], pods: Iterable[Facts]) -> Finding:
    """Free: what nodes offer, less what pods that are not finished request."""
    offered = sum(_amount(node.get("status", {}).get("allocatable", {}), resource) for node in nodes)
    if not offered:
        others = sorted(
            {name for node in nodes for name in node.get("status", {}).get("allocatable", {}) if "/" in name}
        )
        seen = f"; nodes offer {', '.join(others)}" if others else ""
        return Finding(
            what="GPUs",
            state="warning",
            detail=f"no node offers {resource}{seen}",
            fix="install the device plugin of your GPUs, or name their resource with --gpu-resource and "
            "trainer.gpuResource; runs with trainer.gpus: 0 need none",
        )
    used = sum(_requested(pod, resource) for pod in pods)
    detail = f"{offered - used} of {offered} {resource} are free"
    if used < offered:
        return Finding(what="GPUs", state="ok", detail=detail)
    return Finding(what="GPUs", state="warning", detail=detail, fix="runs wait until pods that hold GPUs end")


def _requested(pod: Facts, resource: str) -> int:
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    containers = pod["spec"].get("containers", ())
    return sum(_amount(each.get("resources", {}).get("limits", {}), resource) for each in containers)


def _amount(amounts: Facts, resource: str) -> int:
    return int(amounts.get(resource, 0))


def storage_finding(classes: Sequence[Facts]) -> Finding:
    names = [each["metadata"]["name"] for each in classes]
    default = [
        each["metadata"]["name"]
        for each in classes
        if (each["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    if default:
        return Finding(what="storage", state="ok", detail=f"default storage class {default[0]}")
    if names:
        fix = f"set storage.storageClassName of runs, or mark one as default: kubectl annotate storageclass {names[0]} "
        fix += f"{_DEFAULT_CLASS}=true"
        return Finding(what="storage", state="warning", detail=f"none of {', '.join(names)} is the default", fix=fix)
    fix = "install a provisioner, or name existing claims in storage.claimName"
    return Finding(what="storage", state="problem", detail="there is no storage class", fix=fix)


def pod_security_finding(namespace: str, labels: Mapping[str, str]) -> Finding:
    """Pods of runs keep to the restricted profile, so that every level admits them."""
    what = "Pod Security"
    if (level := labels.get(_ENFORCED, "privileged")) in ("restricted", "baseline"):
        return Finding(what=what, state="ok", detail=f"namespace {namespace} enforces {level}")
    fix = f"kubectl label namespace {namespace} {_ENFORCED}=restricted"
    detail = f"namespace {namespace} enforces nothing; runs work, and so do privileged pods of others"
    return Finding(what=what, state="warning", detail=detail, fix=fix)


def server_clock_finding(server: datetime, sent: datetime, received: datetime) -> Finding:
    """`server` was read between `sent` and `received`, by the clock of this machine, and has whole seconds."""
    early, late = (server - received).total_seconds(), (sent - server).total_seconds()
    skew = max(early, late)
    if skew <= SKEW_SECONDS:
        return Finding(what="clocks", state="ok", detail="this machine and the API server agree")
    where = "behind" if early > late else "ahead of"
    detail = f"this machine is {skew:.0f} s {where} the API server"
    return Finding(what="clocks", state="warning", detail=detail, fix="synchronise this machine with NTP")


def node_clock_finding(renewed: Mapping[str, datetime], server: datetime) -> Finding:
    """Kubelets write the time of their node into their leases every few seconds."""
    wrong = [
        f"{node} is {seconds:.0f} s ahead" if seconds > 0 else f"{node} is {-seconds:.0f} s behind, or not running"
        for node, moment in sorted(renewed.items())
        if not -LEASE_SECONDS <= (seconds := (moment - server).total_seconds()) <= SKEW_SECONDS
    ]
    if wrong:
        fix = "synchronise the nodes with NTP: tokens and leases depend on it"
        return Finding(what="clocks of nodes", state="problem", detail="; ".join(wrong), fix=fix)
    if not renewed:
        return Finding(what="clocks of nodes", state="unknown", detail="no kubelet has a lease")
    return Finding(
        what="clocks of nodes", state="ok", detail=f"{counted(len(renewed), 'node')} compared with the API server"
    )


def image_finding(image: str, pod: Facts | None) -> Finding | None:
    """None while the pod has not shown yet whether its image can be pulled."""
    status = (pod or {}).get("status", {})
    containers = status.get("containerStatuses", ())
    waiting: Facts = next((each["state"]["waiting"] for each in containers if each.get("state", {}).get("waiting")), {})
    if waiting.get("reason") in PULL_ERRORS:
        detail = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
        fix = "check the name, and images.pullSecrets of the chart: the Secrets must exist in this namespace as well"
        return Finding(what=f"image {image}", state="problem", detail=detail, fix=fix)
    if status.get("phase") in ("Running", "Succeeded") or any(each.get("imageID") for each in containers):
        node = (pod or {}).get("spec", {}).get("nodeName", "")
        return Finding(what=f"image {image}", state="ok", detail=f"pulled on node {node}")
    return None


def late_finding(what: str, pod: Facts | None, seconds: float) -> Finding:
    """Of a pod that did not get as far as its check, with what it waits for."""
    conditions = (pod or {}).get("status", {}).get("conditions", ())
    reason = next((each["message"] for each in conditions if each["status"] == "False" and each.get("message")), "")
    detail = f"the pod did not start within {seconds:.0f} s" + (f": {reason}" if reason else "")
    return Finding(what=what, state="unknown", detail=detail)


def network_finding(open_port: bool, closed_port: bool) -> Finding:
    """Whether connections to a port that a NetworkPolicy allows, and to one that it does not, succeeded."""
    what = "NetworkPolicies"
    if not open_port:
        detail = "a pod could not reach a port that a policy allows"
        return Finding(what=what, state="problem", detail=detail, fix="check the network plugin of the cluster")
    if closed_port:
        return Finding(
            what=what,
            state="problem",
            detail="they are not enforced: a pod reached a port that a policy closes",
            fix="install a network plugin that enforces them, such as Calico or Cilium; until then code of "
            "environments can reach everything in the cluster",
        )
    return Finding(what=what, state="ok", detail="enforced (tried with two pods)")
