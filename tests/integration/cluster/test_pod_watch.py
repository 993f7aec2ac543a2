"""The recorder of the survival test counts pods as a watch reports them, and notices two at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from clotho_dev.cluster.kubectl import Kubectl
from e2e.product.pod_watch import PodWatch


def event(kind: str, uid: str, phase: str = "Running") -> dict[str, object]:
    return {"type": kind, "object": {"metadata": {"uid": uid}, "status": {"phase": phase}}}


@pytest.mark.parametrize(
    ("events", "pods", "most"),
    [
        ([event("ADDED", "a"), event("DELETED", "a"), event("ADDED", "b")], {"a", "b"}, 1),
        ([event("ADDED", "a"), event("MODIFIED", "a", "Failed"), event("ADDED", "b")], {"a", "b"}, 1),
        ([event("ADDED", "a"), event("ADDED", "b", "Pending"), event("DELETED", "a")], {"a", "b"}, 2),
    ],
    ids=["replaced after deletion", "replaced after failure", "two at once"],
)
def test_pods_are_counted(tmp_path: Path, events: list[dict[str, object]], pods: set[str], most: int) -> None:
    program = tmp_path / "kubectl"
    text = "\n".join(json.dumps(each, indent=4) for each in events) + "\n"
    program.write_text(f"#!{sys.executable}\nprint({text!r}, end='')\n")
    program.chmod(0o755)
    with PodWatch(Kubectl(program, tmp_path / "kubeconfig", "ns"), "a=b") as watch:
        watch.wait()
    assert watch.pods() == pods
    assert watch.most_at_once() == most
