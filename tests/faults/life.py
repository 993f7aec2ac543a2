"""The life of a run that every campaign repeats: start, failure and restart, a change, the end, deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from faults.masking import state_of
from rig.cluster_access import Body, ClusterAccess, component, eventually
from rig.fake_kubelet import FakeKubelet

RUN = "r"
TRAINING = {"state": "training", "step": 5, "totalSteps": 100, "registered": True, "serving": True}
CHECKPOINT = {"checkpoint": {"step": 5, "path": "/ckpt/5"}}
FINISHED = {"state": "finished", "step": 100, "totalSteps": 100, "checkpoint": {"step": 100, "path": "/ckpt/100"}}
LIMIT_SECONDS = 120.0  # longer than a hung watch stays unnoticed
Reached = Callable[[str], Awaitable[None]]


async def play(cluster: ClusterAccess, kubelet: FakeKubelet, reached: Reached) -> None:
    """`reached(stage)` is called when the run is where that stage ends."""
    await start(cluster, kubelet)
    await reached("running")
    await kubelet.fail(await trainer_of(cluster))
    await cluster.until("restarted", lambda run: run["status"].get("restarts", 0) > 0, RUN, LIMIT_SECONDS)
    await cluster.until_phase("Running", RUN, LIMIT_SECONDS)
    await reached("restarted")
    await cluster.change_run(RUN, environments=[{"name": "letters", "replicas": 2, "config": {"group_size": 4}}])
    await cluster.until("scaled", has_two_environments, RUN, LIMIT_SECONDS)
    await reached("scaled")
    kubelet.progress = FINISHED
    await cluster.until_phase("Completed", RUN, LIMIT_SECONDS)
    await kubelet.fail(await trainer_of(cluster), exit_code=0, reason="Completed")
    await until_ended(cluster)
    await reached("completed")
    await cluster.delete("trainingruns", RUN)
    await until_cleared(cluster)
    await reached("deleted")


async def start(cluster: ClusterAccess, kubelet: FakeKubelet) -> None:
    """A run that is Running and has a checkpoint."""
    kubelet.progress = TRAINING | CHECKPOINT
    await create(cluster)
    await cluster.until_phase("Running", RUN, LIMIT_SECONDS)
    await cluster.until("checkpointed", lambda run: "checkpoint" in run["status"], RUN, LIMIT_SECONDS)


async def create(cluster: ClusterAccess) -> None:
    await cluster.create_run(
        RUN, storage={"retain": True}, trainer={"disruptionBudget": True}, restarts={"limit": 3, "backoffSeconds": 0}
    )


def has_two_environments(run: Body) -> bool:
    return bool(run["status"]["components"]["environments"][0].get("ready") == 2)


async def until_cleared(cluster: ClusterAccess) -> None:
    """Kubernetes' garbage collection has removed everything but claims."""

    async def look() -> tuple[bool, list[str]]:
        left = [name for name in await state_of(cluster, RUN) if not name.startswith("persistentvolumeclaims/")]
        return not left, left

    await eventually("cleared", look, LIMIT_SECONDS)


async def until_ended(cluster: ClusterAccess) -> None:
    """Only the trainer's pod is left. A run that was deleted meanwhile raises NotFound."""

    async def look() -> tuple[bool, list[Body]]:
        await cluster.run(RUN)
        found = await cluster.pods(RUN)
        return [component(pod) for pod in found] == ["trainer"], found

    await eventually("ended", look, LIMIT_SECONDS)


async def trainer_of(cluster: ClusterAccess) -> Body:
    """Bound to a node: the pretended kubelet has it. A run that was deleted meanwhile raises NotFound."""

    async def look() -> tuple[bool, list[Body]]:
        await cluster.run(RUN)
        found = [
            pod
            for pod in await cluster.pods(RUN)
            if component(pod) == "trainer" and pod["status"].get("phase") == "Running"
        ]
        return len(found) == 1, found

    return (await eventually("one trainer", look, LIMIT_SECONDS))[0]
