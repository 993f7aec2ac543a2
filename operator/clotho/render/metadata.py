"""Labels and ownership, the same on everything that the operator makes for an object."""

from typing import Any, Final

from clotho.api.metadata import Metadata
from clotho.api.names import (
    API_VERSION,
    COMPONENT_LABEL,
    FINGERPRINT_ANNOTATION,
    KIND,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    OWNER_LABELS,
    UID_LABEL,
    OwnerKind,
)

Manifest = dict[str, Any]
_NAMES: Final[dict[OwnerKind, str]] = {
    "TrainingRun": "training-run",
    "Environment": "environment",
    "InferenceTest": "inference-test",
}


def selector(owner: Metadata, **more: str) -> dict[str, str]:
    return {UID_LABEL: owner.uid, **more}


def labels(owner: Metadata, component: str = "", kind: OwnerKind = KIND) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": component or _NAMES[kind],
        "app.kubernetes.io/instance": owner.name,
        "app.kubernetes.io/part-of": "clotho",
        MANAGED_BY_LABEL: MANAGED_BY,
        OWNER_LABELS[kind]: owner.name,
        UID_LABEL: owner.uid,
    } | ({COMPONENT_LABEL: component} if component else {})


def object_metadata(
    owner: Metadata,
    name: str,
    *,
    kind: OwnerKind = KIND,
    component: str = "",
    fingerprint: str = "",
    owned: bool = True,
) -> Manifest:
    metadata: Manifest = {"name": name, "namespace": owner.namespace, "labels": labels(owner, component, kind)}
    if fingerprint:
        metadata["annotations"] = {FINGERPRINT_ANNOTATION: fingerprint}
    if owned:
        metadata["ownerReferences"] = [owner_reference(owner, kind)]
    return metadata


def owner_reference(owner: Metadata, kind: OwnerKind = KIND) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,  # deleting an owner never waits for its pods, and needs no right on finalizers
    }
