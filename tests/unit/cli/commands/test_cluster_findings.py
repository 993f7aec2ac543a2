"""What `check --cluster` concludes from what the API server has."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clotho.workspace import findings

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def node(**devices: str) -> dict[str, Any]:
    return {"status": {"allocatable": {"cpu": "8", **{f"nvidia.com/{name}": count for name, count in devices.items()}}}}


def pod(gpus: str, phase: str = "Running", on: str = "a") -> dict[str, Any]:
    container = {"resources": {"limits": {GPU: gpus}}}
    return {"spec": {"nodeName": on, "containers": [container]}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("nodes", "pods", "state", "words"),
    [
        ([node(gpu="8"), node()], [pod("3"), pod("4", "Succeeded"), pod("2", on="")], "ok", "5 of 8"),
        ([node(gpu="2")], [pod("2")], "warning", "0 of 2"),
        ([node(**{"mig-1g.5gb": "7"})], [], "warning", "nodes offer nvidia.com/mig-1g.5gb"),
        ([node()], [], "warning", "no node offers nvidia.com/gpu"),
    ],
)
def test_free_gpus_are_counted(nodes: list[Any], pods: list[Any], state: str, words: str) -> None:
    finding = findings.gpu_finding(GPU, nodes, pods)
    assert (finding.state, words in finding.detail) == (state, True), finding


def storage_class(name: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": annotations or None}}


@pytest.mark.parametrize(
    ("classes", "state"),
    [
        ([storage_class("a"), storage_class("b", **{"storageclass.kubernetes.io/is-default-class": "true"})], "ok"),
        ([storage_class("a")], "warning"),
        ([], "problem"),
    ],
)
def test_storage_needs_a_default_class(classes: list[Any], state: str) -> None:
    assert findings.storage_finding(classes).state == state


def test_the_field_that_chooses_a_storage_class_is_named() -> None:
    assert "set storage.storageClassName of runs" in findings.storage_finding([storage_class("a")]).fix


def test_an_older_crd_names_the_fields_that_it_lacks() -> None:
    ours = {"properties": {"spec": {"properties": {"a": {}, "list": {"items": {"properties": {"new": {}}}}}}}}
    older = {"properties": {"spec": {"properties": {"a": {}, "list": {"items": {"properties": {}}}}}}}
    assert findings.schema_finding("TrainingRun", ours, ours).state == "ok"
    finding = findings.schema_finding("TrainingRun", ours, older)
    assert (finding.state, finding.detail) == ("problem", "lacks spec.list.[].new")
    assert findings.schema_finding("TrainingRun", older, ours).state == "ok", "a newer one has all that is needed"
    named = {"properties": ours["properties"] | {"metadata": {"properties": {"name": {}}}}}
    assert findings.schema_finding("TrainingRun", named, ours).state == "ok", "metadata is never dropped"


@pytest.mark.parametrize(("operator", "state"), [("0.1.0", "ok"), ("0.2.0", "warning"), ("", "unknown")])
def test_versions_are_compared(operator: str, state: str) -> None:
    assert findings.version_finding("0.1.0", operator).state == state


@pytest.mark.parametrize(("level", "state"), [("restricted", "ok"), ("baseline", "ok"), ("", "warning")])
def test_pod_security_level_is_reported(level: str, state: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
    assert findings.pod_security_finding("lab", labels).state == state


@pytest.mark.parametrize(
    ("server", "words"),
    [(0, "agree"), (-4, "agree"), (60, "60 s behind the API server"), (-90, "90 s ahead of the API server")],
)
def test_clock_of_this_machine_is_compared(server: int, words: str) -> None:
    assert words in findings.server_clock_finding(NOW + timedelta(seconds=server), NOW, NOW).detail


def test_clocks_of_nodes_are_compared() -> None:
    well = {"a": NOW - timedelta(seconds=9), "b": NOW + timedelta(seconds=1)}
    assert findings.node_clock_finding(well, NOW).state == "ok"
    assert findings.node_clock_finding({"a": NOW}, NOW).detail == "1 node compared with the API server"
    finding = findings.node_clock_finding({**well, "c": NOW + timedelta(hours=1)}, NOW)
    assert (finding.state, finding.detail) == ("problem", "c is 3600 s ahead")
    assert findings.node_clock_finding({}, NOW).state == "unknown"


def probing(waiting: str = "", phase: str = "Pending") -> dict[str, Any]:
    state = {"waiting": {"reason": waiting, "message": "no such tag"}} if waiting else {"running": {}}
    return {"spec": {"nodeName": "a"}, "status": {"phase": phase, "containerStatuses": [{"state": state}]}}


def test_images_are_pulled_or_not_or_still_being_pulled() -> None:
    assert findings.image_finding("x", probing("ContainerCreating")) is None
    refused = findings.image_finding("x", probing("ImagePullBackOff"))
    assert refused is not None
    assert (refused.state, refused.detail) == ("problem", "ImagePullBackOff: no such tag")
    pulled = findings.image_finding("x", probing(phase="Running"))
    assert pulled is not None
    assert pulled.state == "ok"


@pytest.mark.parametrize(
    ("open_port", "closed_port", "state", "words"),
    [
        (True, False, "ok", "enforced"),
        (True, True, "problem", "not enforced"),
        (False, False, "problem", "could not reach"),
    ],
)
def test_policies_are_enforced_or_not(open_port: bool, closed_port: bool, state: str, words: str) -> None:
    finding = findings.network_finding(open_port, closed_port)
    assert (finding.state, words in finding.detail) == (state, True)
