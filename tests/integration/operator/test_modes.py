"""Runs that are not the usual three pods: inline ones, and the export after the end."""

from clotho_contract.exports import ExportOutcome
from clotho_contract.termination import Termination, encode
from rig.cluster_access import ClusterAccess, component, condition, run_manifest
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess
from unit.render.cases import CASES

FINISHED = {"state": "finished", "step": 100, "totalSteps": 100, "checkpoint": {"step": 100, "path": "/ckpt/100"}}


async def test_an_inline_run_is_a_trainer_alone(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await create_references(cluster)
    manifest = run_manifest("alone") | {"spec": CASES["inline"]}
    await cluster.client.create(cluster.folder("trainingruns"), manifest, dict)
    run = await cluster.until_phase("Running", "alone")
    assert [component(pod) for pod in await cluster.pods("alone")] == ["trainer"]
    assert condition(run, "Ready")["status"] == "True"
    assert condition(run, "APIServerReady") == {}
    assert not await cluster.all("networkpolicies")
    kubelet.progress = FINISHED
    await cluster.until_phase("Completed", "alone")


async def create_references(cluster: ClusterAccess) -> None:
    """What the inline case names: pods are made once it exists."""
    dataset = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sums"}, "data": {"train.jsonl": "{}"}}
    code = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "our-code"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    await cluster.client.create(cluster.folder("configmaps"), dataset, dict)
    await cluster.client.create(cluster.folder("persistentvolumeclaims"), code, dict)


async def test_the_weights_are_exported_after_the_end(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("x", storage={})
    await cluster.until_phase("Running", "x")
    kubelet.progress = FINISHED
    await cluster.until_phase("Completed", "x")
    (trainer,) = [pod for pod in await cluster.pods("x") if component(pod) == "trainer"]
    await kubelet.fail(trainer, exit_code=0, reason="Completed")
    kubelet.progress = {"state": "writing", "artifact": "model-q8_0.gguf", "doneBytes": 1, "totalBytes": 2}
    await cluster.change_run("x", export={})
    half = await cluster.until("half exported", lambda r: r["status"].get("export", {}).get("percent") == 50, "x")
    assert half["status"]["phase"] == "Completed"
    assert condition(half, "Ready")["status"] == "True"

    (exporter,) = [pod for pod in await cluster.pods("x") if component(pod) == "exporter"]
    outcome = ExportOutcome(folder="/var/lib/clotho/export", bytes=2)
    words = encode(Termination(reason="Finished", message="", export=outcome)).decode()
    await kubelet.fail(exporter, exit_code=0, reason="Completed", message=words)
    run = await cluster.until("exported", lambda r: condition(r, "Exported").get("status") == "True", "x")
    assert run["status"]["export"]["folder"] == "/var/lib/clotho/export"
