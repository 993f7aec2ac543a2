"""A trainer of several pods on a real API server: replaced as one, stopped in order, released when half-placed."""

from rig.cluster_access import Body, ClusterAccess, component
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

GANG = {"trainer": {"replicas": 3, "gpus": 0}, "restarts": {"limit": 1, "backoffSeconds": 0}}


def trainers(pods: list[Body]) -> list[Body]:
    return sorted((pod for pod in pods if component(pod) == "trainer"), key=name_of)


def name_of(pod: Body) -> str:
    return str(pod["metadata"]["name"])


def trainer_status(run: Body) -> Body:
    status: Body = run.get("status", {}).get("components", {}).get("trainer", {})
    return status


async def test_a_failed_rank_replaces_all_as_one_restart_and_the_first_pod_stops_first(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("g", **GANG)
    run = await cluster.until_phase("Running", "g")
    assert trainer_status(run)["ranks"] == "3/3"
    before = trainers(await cluster.pods("g"))
    assert [pod["spec"]["hostname"] for pod in before] == ["trainer", "trainer-1", "trainer-2"]
    walls = {each["metadata"]["name"] for each in await cluster.of_run("networkpolicies", "g")}
    assert name_of(before[0]) in walls, "the ranks' own ports are closed to others"

    await kubelet.fail(before[2], exit_code=137, reason="OOMKilled")
    old = {pod["metadata"]["uid"] for pod in before}
    await cluster.until_pods(
        "all replaced",
        lambda pods: len(new := trainers(pods)) == 3 and not old & {pod["metadata"]["uid"] for pod in new},
        "g",
    )
    run = await cluster.until(
        "Running again",
        lambda r: r["status"].get("phase") == "Running" and trainer_status(r).get("ranks") == "3/3",
        "g",
    )
    assert (run["status"]["restarts"], run["status"]["attempt"], trainer_status(run)["failures"]) == (1, 2, 1)
    assert "The trainer (pod 2) ran out of memory" in trainer_status(run)["lastExit"]["message"]
    assert await operator.metric("clotho_restarts_total") == 1
    assert kubelet.trainers_seen_together == 3

    order: list[str] = []
    kubelet.may_finish = lambda pod: order.append(name_of(pod)) is None
    await cluster.change_run("g", suspend=True)
    await cluster.until_phase("Suspended", "g")
    ended = [name for name in dict.fromkeys(order) if "-trainer" in name]
    assert ended[0] == name_of(before[0]), "it writes the last checkpoint while the others are there"
    assert len(ended) == 3


async def test_a_half_placed_gang_gives_its_nodes_back(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.may_bind = lambda pod: not name_of(pod).endswith("-trainer-2")
    await cluster.create_run("h", **GANG)
    run = await cluster.until(
        "without a node for one pod", lambda r: "trainer-2: " in trainer_status(r).get("message", ""), "h"
    )
    assert trainer_status(run)["ranks"] == "2/3"
    assert "nodes are available" in trainer_status(run)["message"]
    await cluster.until_pods("released", lambda pods: bool(pods) and not trainers(pods), "h")
    run = await cluster.until("waiting", lambda r: "The next attempt starts at" in r["status"]["message"], "h")
    assert "Only 2 of 3 pods of the trainer got a node." in run["status"]["message"]
    assert (run["status"].get("restarts", 0), trainer_status(run)["gang"]["releases"]) == (0, 1)
