"""The life of a run on a real API server: up, done, stopped, suspended, expired, deleted."""

import asyncio
from collections.abc import Callable

from clotho.render import objects
from rig.cluster_access import Body, ClusterAccess, component, condition, eventually
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

FINISHED = {"state": "finished", "step": 100, "totalSteps": 100, "checkpoint": {"step": 100, "path": "/ckpt/100"}}


async def test_a_run_starts_and_becomes_ready(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("gsm8k")
    run = await cluster.until_phase("Running", "gsm8k")
    assert condition(run, "Ready")["status"] == "True"
    assert condition(run, "Reconciling") == {}
    assert run["status"]["observedGeneration"] == run["metadata"]["generation"]
    pods = await cluster.pods("gsm8k")
    assert sorted(map(component, pods)) == ["api-server", "environment", "trainer"]
    for plural in ("services", "networkpolicies"):
        assert any(o["metadata"]["labels"].get("clotho.dev/run") == "gsm8k" for o in await cluster.all(plural)), plural
    assert all(pod["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"] for pod in pods)


async def test_progress_reaches_status(cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess) -> None:
    kubelet.progress |= {"step": 42, "rewardMean": 0.5, "tokensPerSecond": 1234.0}
    await cluster.create_run("p")
    run = await cluster.until("at step 42", lambda r: r["status"].get("progress", {}).get("step") == 42, "p")
    assert run["status"]["progress"]["rewardMean"] == 0.5
    assert run["status"]["progress"]["percent"] == 42


async def test_completion_requires_a_finished_trainer(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("c")
    await cluster.until_phase("Running", "c")
    kubelet.progress = FINISHED
    run = await cluster.until_phase("Completed", "c")
    assert condition(run, "Succeeded")["status"] == "True"
    assert run["status"]["results"]["step"] == 100
    trainer = next(pod for pod in await cluster.pods("c") if component(pod) == "trainer")
    await kubelet.fail(trainer, exit_code=0, reason="Completed")
    await cluster.until_pods("only its trainer's logs", lambda pods: [*map(component, pods)] == ["trainer"], "c")


async def test_stop_ends_the_environment_then_the_trainer_then_the_api_server(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("s")
    await cluster.until_phase("Running", "s")
    await cluster.change_run("s", stop=True)
    await cluster.until_phase("Stopped", "s")
    await cluster.until_pods("gone", lambda pods: not pods, "s")
    assert kubelet.ended == ["environment", "trainer", "api-server"]


async def test_a_stopping_trainer_is_waited_for(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    saving = asyncio.Event()
    kubelet.may_finish = lambda pod: component(pod) != "trainer" or saving.is_set()
    await cluster.create_run("w")
    await cluster.until_phase("Running", "w")
    await cluster.change_run("w", stop=True)
    await cluster.until_pods("stopping", lambda pods: _is_terminating(pods, "trainer"), "w")
    assert (await cluster.run("w"))["status"]["phase"] == "Stopping"
    assert not _is_terminating(await cluster.pods("w"), "api-server")
    saving.set()
    await cluster.until_phase("Stopped", "w")


def _is_terminating(pods: list[Body], name: str) -> bool:
    return any(component(pod) == name and pod["metadata"].get("deletionTimestamp") for pod in pods)


async def test_suspend_and_resume(cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess) -> None:
    await cluster.create_run("z")
    await cluster.until_phase("Running", "z")
    await cluster.change_run("z", suspend=True)
    run = await cluster.until_phase("Suspended", "z")
    assert condition(run, "Ready") == {}, "kstatus: a suspended run is neither ready nor failed"
    await cluster.until_pods("gone", lambda pods: not pods, "z")
    await cluster.change_run("z", suspend=False)
    await cluster.until_phase("Running", "z")


async def test_replicas_change_on_a_live_run(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    for replicas in (3, 1):
        await cluster.change_run(
            "r", environments=[{"name": "letters", "replicas": replicas, "config": {"group_size": 4}}]
        )
        await cluster.until_pods(f"with {replicas} environments", _environments(replicas), "r")


def _environments(count: int) -> Callable[[list[Body]], bool]:
    return lambda pods: sum(component(pod) == "environment" for pod in pods) == count


async def test_more_steps_on_a_live_run_reach_the_trainer_and_the_config(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.progress |= {"configuredSteps": 100}
    await cluster.create_run("m")
    await cluster.until_phase("Running", "m")
    (before,) = await cluster.of_run("secrets", "m")
    await cluster.change_run("m", training={"steps": 500})
    (after,) = await cluster.until_objects(
        "secrets", "rewritten", lambda s: s[0]["data"]["run.yaml"] != before["data"]["run.yaml"], "m"
    )
    for key in objects.TOKEN_KEYS:
        assert after["data"][key] == before["data"][key], "the tokens stay"

    async def sent() -> tuple[bool, int]:
        return kubelet.progress["configuredSteps"] == 500, kubelet.progress["configuredSteps"]

    await eventually("sent to the trainer", sent)


async def test_a_run_fails_at_its_deadline(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("d", deadlineSeconds=2)
    run = await cluster.until_phase("Failed", "d")
    assert "deadline" in run["status"]["message"].lower()


async def test_a_finished_run_expires(cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess) -> None:
    kubelet.progress = FINISHED
    await cluster.create_run("t", ttlSecondsAfterFinished=1)
    await cluster.until_gone("trainingruns", "t")


async def test_a_deleted_run_leaves_nothing_but_the_retained_claim(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.progress |= {"step": 5, "checkpoint": {"step": 5, "path": "/ckpt/5"}}
    await cluster.create_run("x", storage={"retain": True})
    await cluster.until("with a checkpoint", lambda run: "checkpoint" in run.get("status", {}), "x")
    await cluster.delete("trainingruns", "x")
    await cluster.until_pods("gone", lambda pods: not pods, "x")
    for plural in ("services", "secrets", "networkpolicies"):
        await cluster.until_objects(plural, "gone", lambda found: not found, "x")
    claims = await cluster.until_objects("persistentvolumeclaims", "but one gone", lambda found: len(found) <= 1, "x")
    assert [component(claim) for claim in claims] == ["trainer"]


async def test_the_claim_of_a_run_without_a_checkpoint_is_deleted_with_it(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.makes_ready = False
    await cluster.create_run("e", storage={"retain": True})
    await cluster.until_pods("there", lambda pods: len(pods) == 3, "e")
    await cluster.delete("trainingruns", "e")
    await cluster.until_objects("persistentvolumeclaims", "gone", lambda found: not found, "e")


async def test_deletion_works_while_the_operator_is_down(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("y")
    await cluster.until_phase("Running", "y")
    await operator.kill()
    await cluster.delete("trainingruns", "y")
    await cluster.until_gone("trainingruns", "y")
    await cluster.until_pods("gone", lambda pods: not pods, "y")


async def test_a_deleted_child_is_recreated(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("h")
    await cluster.until_phase("Running", "h")
    for plural in ("services", "networkpolicies"):
        lost = (await cluster.of_run(plural, "h"))[0]["metadata"]
        await cluster.delete(plural, lost["name"])
        await cluster.until_objects(plural, "back", _another_than(lost["uid"]), "h")
    for name in ("environment", "api-server", "trainer"):
        lost = next(pod for pod in await cluster.pods("h") if component(pod) == name)["metadata"]
        await cluster.delete("pods", lost["name"], gracePeriodSeconds=0)
        await cluster.until_pods("three again", _another_than(lost["uid"], count=3), "h")
    await cluster.until_phase("Running", "h")
    assert kubelet.trainers_seen_together == 1


def _another_than(uid: str, count: int = 1) -> Callable[[list[Body]], bool]:
    return lambda found: len(found) == count and all(each["metadata"]["uid"] != uid for each in found)
