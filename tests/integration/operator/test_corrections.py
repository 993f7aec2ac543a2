"""A run that cannot start is corrected in place: every field may change until its trainer has started."""

import pytest

from clotho.cluster.outcomes import Invalid
from rig.cluster_access import Body, ClusterAccess, condition
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess


async def test_a_run_that_cannot_start_is_corrected_and_then_fixed(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    environments = [{"name": "mine", "entry": "leters", "config": {"group_size": 4}}]
    await cluster.create_run("c", environments=environments, storage={"storageClassName": "no-such", "size": "1Gi"})
    refused = await cluster.until("refused", lambda run: condition(run, "Accepted").get("status") == "False", "c")
    assert "environments.mine.entry: leters is not an entry; did you mean letters?" in refused["status"]["message"]

    await cluster.change_run("c", environments=[environments[0] | {"entry": "letters"}])
    waiting = "Waiting for StorageClass no-such (storage.storageClassName): it does not exist in this cluster."
    await cluster.until("waiting for its class", lambda run: run["status"].get("message") == waiting, "c")
    assert await cluster.pods("c") == []

    await cluster.change_run("c", storage={"storageClassName": None, "ephemeral": True}, model={"name": "other"})
    await cluster.until_phase("Running", "c")
    with pytest.raises(Invalid, match="model is immutable: once the trainer has started"):
        await cluster.change_run("c", model={"name": "third"})


async def test_a_misspelt_file_or_task_is_named_before_a_pod_is_made(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"mine.py": ""}}
    await cluster.client.create(f"/api/v1/namespaces/{cluster.namespace}/configmaps", files, Body)
    mine = {"name": "mine", "configMapName": "code", "config": {"group_size": 4}}
    await cluster.create_run("c", environments=[mine | {"entry": "/environment/min.py"}])
    waiting = (
        "Waiting for file min.py of ConfigMap code (environments.mine.entry): it does not exist in this namespace; "
        "did you mean mine.py?"
    )
    await cluster.until("waiting for its file", lambda run: run.get("status", {}).get("message") == waiting, "c")

    await cluster.change_run("c", environments=[mine | {"entry": "reasoning-gym:chain_sun"}])
    refused = await cluster.until("refused", lambda run: condition(run, "Accepted").get("status") == "False", "c")
    problem = "environments.mine.entry: reasoning-gym has no task 'chain_sun'; did you mean chain_sum"
    assert problem in refused["status"]["message"]
    assert await cluster.pods("c") == []

    await cluster.change_run("c", environments=[mine | {"entry": "/environment/mine.py"}])
    await cluster.until_phase("Running", "c")
