"""Runs queued by the real Kueue: no pod before admission, an orderly end on eviction, quota kept through a crash."""

from pathlib import Path
from typing import Any

import pytest

from clotho_dev.cluster.kubectl import Kubectl
from rig.cluster_access import Body, ClusterAccess, component, eventually, run_manifest
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
EXAMPLE = Path(__file__).parents[3] / "examples" / "kueue" / "kueue.yaml"
GANG = {"trainer": {"replicas": 2, "gpus": 1}}
SAVED = {"state": "training", "step": 7, "totalSteps": 100, "checkpoint": {"step": 7, "path": "/ckpt/7"}}


def queue_objects(namespace: str, gpus: int) -> list[Body]:
    """One flavour, one queue with so many GPUs and plenty of the rest, and a class of urgent runs."""
    version = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    quota = [{"name": "cpu", "nominalQuota": 1000}, {"name": "memory", "nominalQuota": "10Ti"}]
    group = {
        "coveredResources": ["cpu", "memory", "nvidia.com/gpu"],
        "flavors": [{"name": namespace, "resources": [*quota, {"name": "nvidia.com/gpu", "nominalQuota": gpus}]}],
    }
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    return [
        {
            **version,
            "kind": "ResourceFlavor",
            "metadata": {"name": namespace},
            "spec": {"nodeLabels": {"pool": "training"}, "tolerations": [toleration]},
        },
        {**version, "kind": "ClusterQueue", "metadata": {"name": namespace}, "spec": spec},
        {**version, "kind": "WorkloadPriorityClass", "metadata": {"name": namespace}, "value": 1000},
        {
            **version,
            "kind": "LocalQueue",
            "metadata": {"name": "team", "namespace": namespace},
            "spec": {"clusterQueue": namespace},
        },
    ]


async def create_run(cluster: ClusterAccess, name: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
    manifest = run_manifest(name, **{**GANG, **spec})
    manifest["metadata"]["labels"] = {QUEUE: "team", **(labels or {})}
    await cluster.client.create(cluster.folder("trainingruns"), manifest, Body)


async def workload_of(cluster: ClusterAccess, run: str) -> Body:
    (found,) = await cluster.of_run("workloads", run)
    return found


def is_queued(run: Body) -> bool:
    return any(c["type"] == "Reconciling" and c["reason"] == "Queued" for c in run["status"].get("conditions", ()))


def condition(workload: Body, kind: str) -> str:
    found = (c["status"] for c in workload.get("status", {}).get("conditions", ()) if c["type"] == kind)
    return next(found, "absent")


async def test_a_run_waits_until_kueue_is_installed_and_then_for_its_queue(
    cluster: ClusterAccess,
    kubelet: FakeKubelet,
    kubectl: Kubectl,
    operator: OperatorProcess,
    request: pytest.FixtureRequest,
) -> None:
    await create_run(cluster, "r")
    run = await cluster.until("waiting", lambda r: "Waiting for Kueue" in r.get("status", {}).get("message", ""), "r")
    assert "Install Kueue, or remove the label" in run["status"]["message"]
    await cluster.create_run("without")
    await cluster.until_phase("Running", "without")

    request.getfixturevalue("kueue")
    kubectl.in_namespace(cluster.namespace).run("create", "--dry-run=server", f"--filename={EXAMPLE}")
    run = await cluster.until("queued", lambda r: "doesn't exist" in r["status"]["message"], "r")
    assert run["status"]["message"] == "Queued in LocalQueue team: LocalQueue team doesn't exist."
    assert await cluster.pods("r") == []
    kubectl.apply(queue_objects(cluster.namespace, gpus=2))
    await cluster.until_phase("Running", "r")
    for pod in await cluster.pods("r"):
        assert pod["spec"]["nodeSelector"] == {"pool": "training"}
        assert any(each.get("key") == "gpu" for each in pod["spec"]["tolerations"])
        assert not any("kueue" in label for label in pod["metadata"]["labels"])


@pytest.mark.usefixtures("kueue")
async def test_a_more_urgent_run_evicts_another_which_keeps_its_checkpoint_and_resumes(
    cluster: ClusterAccess, kubelet: FakeKubelet, kubectl: Kubectl, operator: OperatorProcess
) -> None:
    kubelet.progress = SAVED
    kubectl.apply(queue_objects(cluster.namespace, gpus=2))
    await create_run(cluster, "first")
    await cluster.until_phase("Running", "first")
    await create_run(cluster, "second")
    run = await cluster.until("queued", lambda r: "quota" in r.get("status", {}).get("message", ""), "second")
    assert run["status"]["message"].startswith("Queued in LocalQueue team: couldn't assign flavors to pod set trainer")
    assert await cluster.pods("second") == []

    admitted = await workload_of(cluster, "first")
    before = next(pod for pod in await cluster.pods("first") if component(pod) == "trainer")
    await kubelet.fail(before, exit_code=137, reason="OOMKilled")
    await cluster.until("restarted", lambda r: r["status"].get("restarts") == 1, "first")
    await cluster.until_phase("Running", "first")
    assert (await workload_of(cluster, "first"))["metadata"]["uid"] == admitted["metadata"]["uid"]
    assert await cluster.pods("second") == [], "a crash keeps the quota"
    await until_workload(cluster, "first", "PodsReady", "True")
    await cluster.change_run("second", stop=True)
    await cluster.until_objects("workloads", "gone", lambda found: not found, "second")

    kubelet.ended.clear()
    await create_run(cluster, "urgent", {PRIORITY: cluster.namespace})
    run = await cluster.until("queued again", is_queued, "first")
    assert kubelet.ended[:4] == ["environment", "trainer", "trainer", "api-server"]
    assert run["status"]["checkpoint"]["step"] == 7
    assert (run["status"]["phase"], "startTime" in run["status"]) == ("Pending", False)
    await cluster.until_phase("Running", "urgent")
    assert await cluster.pods("first") == []
    assert (await workload_of(cluster, "first"))["metadata"]["uid"] != admitted["metadata"]["uid"]

    await cluster.change_run("urgent", stop=True)
    run = await cluster.until_phase("Running", "first")
    assert (run["status"]["attempt"], run["status"]["restarts"]) == (3, 1)
    await cluster.change_run("first", suspend=True)
    await cluster.until_phase("Suspended", "first")
    await cluster.until_objects("workloads", "gone", lambda found: not found, "first")


async def until_workload(cluster: ClusterAccess, run: str, kind: str, truth: str) -> None:
    async def look() -> tuple[bool, Body]:
        found = await workload_of(cluster, run)
        return condition(found, kind) == truth, found

    await eventually(f"{kind} {truth}", look)
