"""Labels and ownership, the same on everything that belongs to a run."""

from typing import Any

from clotho.api.metadata import Metadata
from clotho.api.names import (
    API_VERSION,
    COMPONENT_LABEL,
    FINGERPRINT_ANNOTATION,
    KIND,
    RUN_LABEL,
    UID_LABEL,
)

Manifest = dict[str, Any]


def selector(run: Metadata, **more: str) -> dict[str, str]:
    return {UID_LABEL: run.uid, **more}


def labels(run: Metadata, component: str = "") -> dict[str, str]:
    return {
        "app.kubernetes.io/name": component or "training-run",
        "app.kubernetes.io/instance": run.name,
        "app.kubernetes.io/part-of": "clotho",
        "app.kubernetes.io/managed-by": "clotho-operator",
        RUN_LABEL: run.name,
        UID_LABEL: run.uid,
    } | ({COMPONENT_LABEL: component} if component else {})


def object_metadata(
    run: Metadata, name: str, *, component: str = "", fingerprint: str = "", owned: bool = True
) -> Manifest:
    metadata: Manifest = {"name": name, "namespace": run.namespace, "labels": labels(run, component)}
    if fingerprint:
        metadata["annotations"] = {FINGERPRINT_ANNOTATION: fingerprint}
    if owned:
        metadata["ownerReferences"] = [owner_reference(run)]
    return metadata


def owner_reference(run: Metadata) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": run.name,
        "uid": run.uid,
        "controller": True,
        "blockOwnerDeletion": False,  # deleting a run never waits for its pods, and needs no right on finalizers
    }
