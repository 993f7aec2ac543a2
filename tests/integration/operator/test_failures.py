"""Failures of pods, and how the run's status reports them."""

import pytest

from rig.cluster_access import Body, ClusterAccess, component, condition
from rig.fake_kubelet import FakeKubelet, container
from rig.operator_process import OperatorProcess


async def pod_of(cluster: ClusterAccess, run: str, name: str) -> Body:
    return next(pod for pod in await cluster.pods(run) if component(pod) == name)


async def until_replaced(cluster: ClusterAccess, run: str, pod: Body) -> Body:
    uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
    pods = await cluster.until_pods(
        f"without the failed {name}",
        lambda pods: any(p["metadata"]["name"] == name and p["metadata"]["uid"] != uid for p in pods),
        run,
    )
    return next(p for p in pods if p["metadata"]["name"] == name)


@pytest.mark.parametrize("name", ["trainer", "api-server", "environment"])
async def test_a_failed_pod_is_replaced_and_counted(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess, name: str
) -> None:
    await cluster.create_run("f")
    await cluster.until_phase("Running", "f")
    failed = await pod_of(cluster, "f", name)
    await kubelet.fail(failed, exit_code=137, reason="OOMKilled")
    await until_replaced(cluster, "f", failed)
    run = await cluster.until("Running again", lambda r: is_up(r) and r["status"].get("restarts") == 1, "f")
    assert "OOMKilled" in str(run["status"]["components"])
    assert kubelet.trainers_seen_together == 1
    assert await operator.metric("clotho_restarts_total") == 1


def is_up(run: Body) -> bool:
    return run["status"].get("phase") == "Running" and condition(run, "Ready").get("status") == "True"


async def test_a_run_fails_when_the_restart_limit_is_reached(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("b", restarts={"limit": 1, "backoffSeconds": 0})
    await cluster.until_phase("Running", "b")
    failed = await pod_of(cluster, "b", "trainer")
    await kubelet.fail(failed, message='{"reason": "NonFiniteLoss", "message": "the loss is NaN at step 7"}')
    again = await until_replaced(cluster, "b", failed)
    await cluster.until_phase("Running", "b")
    await kubelet.fail(again, message='{"reason": "NonFiniteLoss", "message": "the loss is NaN at step 9"}')
    run = await cluster.until_phase("Failed", "b")
    assert "NaN at step 9" in run["status"]["message"]
    assert condition(run, "Stalled")["status"] == "True"


async def test_an_invalid_config_is_permanent(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("i")
    await cluster.until_phase("Running", "i")
    words = '{"reason": "InvalidConfig", "message": "no such model: Qwen/Qwen3-0.6B"}'
    await kubelet.fail(await pod_of(cluster, "i", "trainer"), message=words)
    run = await cluster.until_phase("Failed", "i")
    assert "no such model" in run["status"]["message"]
    assert run["status"].get("restarts", 0) == 0


async def test_an_eviction_is_not_counted_as_a_restart(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("e", restarts={"limit": 0, "backoffSeconds": 0})
    await cluster.until_phase("Running", "e")
    trainer = await pod_of(cluster, "e", "trainer")
    await kubelet.set_status(
        trainer,
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.", "conditions": []},
    )
    await until_replaced(cluster, "e", trainer)
    await cluster.until("Running again", is_up, "e")


async def test_exit_0_before_the_last_step_is_not_completed(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("n")
    await cluster.until_phase("Running", "n")
    trainer = await pod_of(cluster, "n", "trainer")
    await kubelet.fail(trainer, exit_code=0, reason="Completed")
    await until_replaced(cluster, "n", trainer)
    assert (await cluster.run("n"))["status"]["phase"] != "Completed"


async def test_the_schedulers_message_is_in_status(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.binds = False
    await cluster.create_run("q")
    await cluster.until("telling", lambda r: "nodes are available" in r["status"].get("message", ""), "q")


async def test_an_image_that_cannot_be_pulled_is_named_in_the_message(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.makes_ready = False
    await cluster.create_run("v")
    await cluster.until_pods("there", lambda pods: len(pods) == 3, "v")
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "ghcr.io/example/absent"'}
    trainer = await pod_of(cluster, "v", "trainer")
    await kubelet.set_status(trainer, {"containerStatuses": [container("main", {"waiting": waiting})]})
    await cluster.until("telling", lambda r: "ghcr.io/example/absent" in r["status"].get("message", ""), "v")


async def test_a_stall_is_reported_with_its_cause(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.queue = {"current_step": 1, "queue_size": 0, "environments": []}
    await cluster.create_run("l", stall={"afterSeconds": 2, "action": "Report"})
    run = await cluster.until("stalled", lambda r: "stall" in r["status"], "l")
    assert run["status"]["stall"]["cause"] == "EnvironmentsNotProducing"
    assert condition(run, "Stalled")["status"] == "True"
    assert await operator.metric("clotho_stalls_total") == 1
    kubelet.progress |= {"step": 2}
    await cluster.until("moving again", lambda r: "stall" not in r["status"], "l")


async def test_a_stall_can_restart_the_component_that_caused_it(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("g", stall={"afterSeconds": 2, "action": "Restart"})
    await cluster.until_phase("Running", "g")
    trainer = await pod_of(cluster, "g", "trainer")
    kubelet.queue |= {"queue_size": 100, "queue_sequences": 400}
    kubelet.silent = {8001}
    await until_replaced(cluster, "g", trainer)
    assert kubelet.trainers_seen_together == 1


async def test_a_refusal_by_the_api_server_reaches_status(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    """A quota is not permanent: once there is room, the run goes on by itself."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "0"}},
    }
    await cluster.client.create(cluster.folder("resourcequotas"), quota, Body)
    await cluster.create_run("u")
    await cluster.until("telling", lambda r: "quota" in r.get("status", {}).get("message", ""), "u")
    await cluster.delete("resourcequotas", "small")
    await cluster.until_phase("Running", "u")


async def test_a_misspelt_field_deep_in_a_template_is_refused_before_any_pod(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    misspelt = {"spec": {"containers": [{"name": "main", "resources": {"limts": {"memory": "1Gi"}}}]}}
    await cluster.create_run("t", trainer={"template": misspelt})
    run = await cluster.until("refused", lambda run: condition(run, "Accepted").get("status") == "False", "t")
    assert "trainer.template: " in run["status"]["message"]
    assert 'unknown field "spec.containers[0].resources.limts"' in run["status"]["message"]
    assert await cluster.pods("t") == []
