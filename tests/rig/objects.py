"""Runs and pods as the API server would send them."""

from typing import Any

from clotho.api.training_run import TrainingRun, parse
from clotho.plan.pods import Pod, parse_pod

Body = dict[str, Any]
UID = "11111111-2222-3333-4444-555555555555"
SPEC: Body = {
    "model": {"name": "m"},
    "environments": [{"name": "letters"}],
    "training": {"steps": 100, "batchSize": 8},
    "stall": {"afterSeconds": 600},
}


def run_body(version: int = 1, status: Body | None = None, **spec: Any) -> Body:
    return {
        "apiVersion": "clotho.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {
            "name": "r",
            "namespace": "ns",
            "uid": UID,
            "generation": 1,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-15T12:00:00Z",
        },
        "spec": {**SPEC, **spec},
        "status": status or {},
    }


def a_run(version: int = 1, status: Body | None = None, **spec: Any) -> TrainingRun:
    run = parse(run_body(version, status, **spec))
    assert isinstance(run, TrainingRun)
    return run


def pod_body(
    component: str, version: int = 1, phase: str = "Running", address: str = "10.0.0.1", uid: str = ""
) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"r-{component}",
            "namespace": "ns",
            "uid": uid or f"uid-{component}",
            "resourceVersion": str(version),
            "labels": {
                "app.kubernetes.io/managed-by": "clotho-operator",
                "clotho.dev/run": "r",
                "clotho.dev/owner-uid": UID,
                "app.kubernetes.io/component": component,
            },
        },
        "spec": {"nodeName": "n"},
        "status": {"phase": phase, "podIP": address},
    }


def a_pod(component: str, **changes: Any) -> Pod:
    return parse_pod(pod_body(component, **changes))
