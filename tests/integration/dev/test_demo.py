"""`make demo` in a cluster where people have tried more than the demo."""

from pathlib import Path

import pytest

from clotho_dev import demo
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.target import Current


def claim(name: str, run: str) -> dict[str, object]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    labels = {"clotho.dev/run": run}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def test_a_second_demo_keeps_the_claims_of_other_runs(kubectl: Kubectl, crds: None, namespace: str) -> None:
    here = kubectl.in_namespace(namespace)
    here.apply([claim("letters-1-trainer", "letters"), claim("mine-1-trainer", "mine")])
    demo.remove_run(here)
    left = [each["metadata"]["name"] for each in here.get("pvc")["items"] if not is_leaving(each)]
    assert left == ["mine-1-trainer"]


def is_leaving(item: dict[str, dict[str, object]]) -> bool:
    return "deletionTimestamp" in item["metadata"]


def test_current_without_a_context_says_how_to_choose_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ClusterError, match=r"kubectl has no current context: choose one with `kubectl config use"):
        Current().up()
