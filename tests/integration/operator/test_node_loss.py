"""A node disappears with a run's trainer on it, and comes back: never two trainers, and no restart is used up."""

from rig.cluster_access import Body, ClusterAccess, component, condition, eventually
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

NO_RESTARTS = {"limit": 0, "backoffSeconds": 0}  # those that the run itself causes
LOST = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "node is gone"}
UNKNOWN = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}


async def trainer_of(cluster: ClusterAccess) -> Body:
    (pod,) = [pod for pod in await cluster.pods("r") if component(pod) == "trainer"]
    return pod


async def lose_node(cluster: ClusterAccess, kubelet: FakeKubelet, pod: Body) -> None:
    """As node lifecycle and taint manager do it; without a kubelet nothing ends."""
    kubelet.may_finish = lambda _: False
    kubelet.silent |= {8000, 8001, 8002}
    await kubelet.set_status(pod, {"conditions": [LOST, UNKNOWN]})
    await cluster.delete("pods", pod["metadata"]["name"])


async def until_replaced(cluster: ClusterAccess, lost: Body) -> None:
    async def look() -> tuple[bool, list[str]]:
        found = [pod["metadata"]["uid"] for pod in await cluster.pods("r") if component(pod) == "trainer"]
        return bool(found) and lost["metadata"]["uid"] not in found, found

    await eventually("replaced", look)


async def test_run_waits_for_a_lost_node_and_resumes_when_it_is_back(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("r", restarts=NO_RESTARTS)
    await cluster.until_phase("Running", "r")
    lost = await trainer_of(cluster)
    await lose_node(cluster, kubelet, lost)
    await cluster.until("not ready", lambda run: condition(run, "Ready").get("status") != "True", "r")
    assert (await trainer_of(cluster))["metadata"]["uid"] == lost["metadata"]["uid"], "it may still be training there"
    kubelet.silent.clear()
    kubelet.may_finish = lambda _: True
    await until_replaced(cluster, lost)
    await cluster.until_phase("Running", "r")
    assert kubelet.trainers_seen_together == 1


async def test_run_resumes_elsewhere_once_the_pods_of_a_deleted_node_are_removed(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("r", restarts=NO_RESTARTS)
    await cluster.until_phase("Running", "r")
    lost = await trainer_of(cluster)
    await lose_node(cluster, kubelet, lost)
    await cluster.delete("pods", lost["metadata"]["name"], gracePeriodSeconds=0)  # as the pod garbage collector does
    kubelet.silent.clear()
    await until_replaced(cluster, lost)
    await cluster.until_phase("Running", "r")
    assert kubelet.trainers_seen_together == 1
