"""What a pod template may set. An allow-list: templates change where and how pods run, never what protects others.

Three classes: fields that are always allowed, fields that never are, and the rest, which a TrainingPolicy can permit
by name (`permissions.templateFields`).
"""

import posixpath
from collections.abc import Iterator
from typing import Any, Final

from clotho.api.names import GROUP
from clotho_contract.nearest import nearest

Tree = dict[str, Any]

METADATA: Final = frozenset({"labels", "annotations"})
POD: Final = frozenset(
    {
        "affinity",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "hostAliases",
        "hostUsers",
        "imagePullSecrets",
        "initContainers",
        "nodeSelector",
        "os",
        "preemptionPolicy",
        "priorityClassName",
        "resourceClaims",
        "resources",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "securityContext",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    }
)
CONTAINER: Final = frozenset(
    {
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resizePolicy",
        "resources",
        "restartPolicy",
        "securityContext",
        "startupProbe",
        "stdin",
        "stdinOnce",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "tty",
        "volumeDevices",
        "volumeMounts",
        "workingDir",
    }
)
VOLUME: Final = frozenset(
    {
        "name",
        "configMap",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
PROJECTED: Final = frozenset({"configMap", "downwardAPI", "secret"})
_ALLOWED: Final = {
    "metadata": METADATA,
    "spec": POD,
    "containers": CONTAINER,
    "volumes": VOLUME,
    "volumes.projected": PROJECTED,
}

_CREDENTIALS: Final = "pods of runs have no Kubernetes credentials"
_NODE: Final = "pods of runs have no access to their node"
_OURS: Final = "the operator sets it"
_NEVER: Final[dict[str, str]] = {
    "metadata.name": _OURS,
    "metadata.generateName": _OURS,
    "metadata.namespace": _OURS,
    "metadata.ownerReferences": _OURS,
    "metadata.finalizers": "a finalizer would keep the run's pods from ending",
    "spec.serviceAccountName": _CREDENTIALS,
    "spec.serviceAccount": _CREDENTIALS,
    "spec.automountServiceAccountToken": _CREDENTIALS,
    "spec.hostNetwork": _NODE,
    "spec.hostPID": _NODE,
    "spec.hostIPC": _NODE,
    "spec.nodeName": "the scheduler chooses the node; use nodeSelector or affinity",
    "spec.restartPolicy": _OURS,
    "spec.hostname": _OURS,
    "spec.subdomain": _OURS,
    "spec.setHostnameAsFQDN": _OURS,
    "spec.activeDeadlineSeconds": f"{_OURS}; use deadlineSeconds",
    "spec.ephemeralContainers": "use `kubectl debug`",
    "volumes.hostPath": _NODE,
    "volumes.projected.serviceAccountToken": _CREDENTIALS,
    "volumes.projected.podCertificate": _CREDENTIALS,
}
_OUR_LABELS: Final = frozenset(
    f"app.kubernetes.io/{name}" for name in ("name", "instance", "part-of", "managed-by", "component")
)
# Annotations that weaken a container's profile.
_WEAKENING: Final = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
)
# Annotations by which network plugins attach other networks, and container runtimes hand out devices of the node.
_GRANTING: Final = (
    *("k8s.v1.cni.cncf.io/", "v1.multus-cni.io/", "cni.projectcalico.org/", "k8s.ovn.org/"),
    *("cdi.k8s.io/", "io.kubernetes.cri-o.", "io.katacontainers.", "io.containerd."),
)
_GRANTING_DOMAINS: Final = (".nri.io", ".crio.io", ".noderesource.dev")

_MISSPELT: Final = 0.85  # similarity: more than restartPolicyRules and restartPolicy have
_DEVICES: Final = "the container runtime may hand out GPUs by it; use resources.limits"
_DEVICE_FOLDER: Final = "/var/run/nvidia-container-devices"


def template_problems(where: str, template: Tree, permitted: frozenset[str] = frozenset()) -> Iterator[str]:
    """One sentence for each field that the template may not set. `where` is the template's own place in the spec."""
    yield from forbidden_problems(where, template)
    annotations = map(str, _dict(_dict(template.get("metadata")).get("annotations")))
    names = [*_fields(template), *filter(_is_granting, annotations)]
    for name in names:
        if name not in _NEVER and name not in permitted:
            place, _, field = name.rpartition(".")
            yield (
                f"{where}: {name} is not allowed in a template; a TrainingPolicy can permit it with "
                f"permissions.templateFields{nearest(field, _ALLOWED.get(place, ()), similarity=_MISSPELT)}"
            )


def _is_granting(annotation: str) -> bool:
    domain, _, _ = annotation.partition("/")
    return annotation.startswith(_GRANTING) or domain.endswith(_GRANTING_DOMAINS)


def forbidden_problems(where: str, template: Tree) -> Iterator[str]:
    """The same for what no TrainingPolicy can permit."""
    for name in _fields(template):
        if name in _NEVER:
            yield f"{where}: {name} is not allowed in a template: {_NEVER[name]}"
    for name in _device_requests(template):
        yield f"{where}: {name} is not allowed in a template: {_DEVICES}"
    metadata = _dict(template.get("metadata"))
    for label in map(str, _dict(metadata.get("labels"))):
        if label.startswith(f"{GROUP}/") or label in _OUR_LABELS:
            yield f"{where}: the label {label} is not allowed in a template: {_OURS}"
    for annotation in map(str, _dict(metadata.get("annotations"))):
        if annotation.startswith((f"{GROUP}/", *_WEAKENING)):
            yield f"{where}: the annotation {annotation} is not allowed in a template"


def _device_requests(template: Tree) -> Iterator[str]:
    """By a variable or a mount, a container gets devices that it has not asked the scheduler for."""
    pod = _dict(template.get("spec"))
    for container in (each for kind in ("initContainers", "containers") for each in map(_dict, _list(pod.get(kind)))):
        for variable in (str(_dict(each).get("name")) for each in _list(container.get("env"))):
            if variable.endswith("_VISIBLE_DEVICES") or variable.startswith(("NVIDIA_MIG_", "NVIDIA_IMEX_")):
                yield f"the variable {variable}"
        for path in (str(_dict(each).get("mountPath")) for each in _list(container.get("volumeMounts"))):
            if posixpath.normpath(path).startswith(_DEVICE_FOLDER):
                yield f"a mount at {_DEVICE_FOLDER}"


def _fields(template: Tree) -> Iterator[str]:
    """Every field outside the allow-list, by the name that a TrainingPolicy permits it with, each once."""
    metadata, pod = _dict(template.get("metadata")), _dict(template.get("spec"))
    found = [f"metadata.{name}" for name in _outside(metadata, METADATA)]
    found += [f"spec.{name}" for name in _outside(pod, POD)]
    for kind in ("initContainers", "containers"):
        for container in map(_dict, _list(pod.get(kind))):
            found += [f"containers.{name}" for name in _outside(container, CONTAINER)]
    for volume in map(_dict, _list(pod.get("volumes"))):
        found += [f"volumes.{name}" for name in _outside(volume, VOLUME)]
        for source in map(_dict, _list(_dict(volume.get("projected")).get("sources"))):
            found += [f"volumes.projected.{name}" for name in _outside(source, PROJECTED)]
    yield from dict.fromkeys(found)


def _outside(tree: Tree, allowed: frozenset[str]) -> list[str]:
    return [str(name) for name, value in tree.items() if value is not None and name not in allowed and name != "$patch"]


def _dict(value: object) -> Tree:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
