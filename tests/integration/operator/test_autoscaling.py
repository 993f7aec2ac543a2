"""An environment with autoscaling on a real API server: up while the trainer waits, down while data waits."""

from typing import Any

from clotho.cluster.outcomes import Conflict
from rig.cluster_access import Body, ClusterAccess, component, eventually
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

LETTERS = {"name": "letters", "config": {"group_size": 4}, "replicas": 2, "autoscaling": {"max": 4}}
LONG_AGO = "2026-01-01T00:00:00Z"


def chosen(run: Body) -> dict[str, Any]:
    return next(iter(run.get("status", {}).get("autoscaling", [])), {})


class Trainer:
    """Reports one step after the other; time passes by what the status says since when."""

    def __init__(self, cluster: ClusterAccess, kubelet: FakeKubelet) -> None:
        self._cluster, self._kubelet = cluster, kubelet

    async def step(self, *, waiting_share: float, batches: int = 0) -> Body:
        step = self._kubelet.progress["step"] + 1
        self._kubelet.queue |= {"queue_sequences": 8 * batches}
        self._kubelet.progress |= {"step": step, "waitingShare": waiting_share, "occupancy": 0.1}
        run = await self._cluster.until(f"observed at step {step}", lambda r: chosen(r).get("step") == step, "e")
        return chosen(run)

    async def let_time_pass(self, *times: str) -> None:
        async def patch() -> tuple[bool, str]:
            run = await self._cluster.run("e")
            change = {
                "metadata": {"resourceVersion": run["metadata"]["resourceVersion"]},
                "status": {"autoscaling": [chosen(run) | dict.fromkeys(times, LONG_AGO)]},
            }
            try:
                await self._cluster.patch("trainingruns", "e", change, "/status")
            except Conflict:
                return False, "the operator was faster"
            return True, ""

        await eventually("patched", patch)


async def test_an_environment_grows_to_its_maximum_and_shrinks_again(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    def has_ready(count: int) -> Any:
        return lambda run: run["status"]["components"]["environments"][0].get("ready") == count

    await cluster.create_run("e", environments=[LETTERS])
    await cluster.until_phase("Running", "e")
    trainer = Trainer(cluster, kubelet)
    for _ in range(3):
        state = await trainer.step(waiting_share=0.6)
    assert (state["target"], state["reason"]) == (4, "Raised")
    run = await cluster.until("with 4 environments", has_ready(4), "e")
    assert run["status"]["components"]["environments"][0]["replicas"] == 4
    assert run["status"].get("restarts", 0) == 0
    (event,) = [event for event in await cluster.all("events") if event.get("reason") == "Scaled"]
    assert "Raised from 2 to 4: the trainer waited 60% of the step" in event["message"]

    await cluster.change_run("e", environments=[LETTERS | {"replicas": 3}])
    await trainer.step(waiting_share=0.0, batches=3)
    for _ in range(2):
        await trainer.let_time_pass("changeTime", "fullSince")
        state = await trainer.step(waiting_share=0.0, batches=3)
        assert state["target"] == 3, "replicas by hand is the minimum"
    await cluster.until_pods(
        "3 environments", lambda pods: sum(component(pod) == "environment" for pod in pods) == 3, "e"
    )
