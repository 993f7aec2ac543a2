"""TrainingPolicies enforced by the operator alone, as for objects that got past admission; and the queue."""

import base64
from typing import Any

import yaml

from rig.cluster_access import Body, ClusterAccess, component, condition, eventually
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

FINISHED = {"state": "finished", "step": 100, "totalSteps": 100, "checkpoint": {"step": 100, "path": "/ckpt/100"}}


async def set_policy(cluster: ClusterAccess, name: str, **spec: Any) -> None:
    manifest = {"apiVersion": "clotho.dev/v1alpha1", "kind": "TrainingPolicy", "metadata": {"name": name}, "spec": spec}
    await cluster.client.create(cluster.folder("trainingpolicies"), manifest, Body)


async def config_of(cluster: ClusterAccess, run: str) -> Body:
    (secret,) = await cluster.until_objects("secrets", "there", lambda found: len(found) == 1, run)
    config: Body = yaml.safe_load(base64.b64decode(secret["data"]["run.yaml"]))
    return config


def is_refused(run: Body) -> bool:
    return condition(run, "Accepted").get("status") == "False"


def is_queued(run: Body) -> bool:
    return condition(run, "Reconciling").get("reason") == "Queued"


async def test_locked_values_reach_the_pods_and_status_names_the_policy(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    locked = {"training": {"lora": {"rank": 16}}, "environmentConfig": {"max_token_length": 8192}}
    await set_policy(cluster, "team", locked={**locked, "tracking": {"wandb": {"project": "p", "mode": "offline"}}})
    await cluster.create_run("r")
    run = await cluster.until_phase("Running", "r")
    config = await config_of(cluster, "r")
    assert config["training"]["lora"]["rank"] == 16
    assert config["wandb"]["project"] == "p"
    assert config["environments"][0]["config"] == {"group_size": 4, "max_token_length": 8192}
    assert run["status"]["policy"]["names"] == ["team"]
    assert run["spec"]["training"]["lora"]["rank"] == 32, "the spec is its author's"


async def test_a_run_past_admission_is_refused_until_run_or_policy_changes(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await set_policy(cluster, "a", limits={"steps": 500, "gpus": 0})
    await set_policy(cluster, "b", limits={"steps": 50})
    await cluster.create_run("r")
    run = await cluster.until("refused", is_refused, "r")
    message = condition(run, "Accepted")["message"]
    assert "training.steps: 100 is more than 50, the limit of TrainingPolicies a, b" in message
    assert "trainer.gpus: 1 is more than 0" in message
    assert await cluster.pods("r") == []
    for name in "ab":
        await cluster.delete("trainingpolicies", name)
    await cluster.until_phase("Running", "r")


async def test_a_later_policy_leaves_live_runs_alone(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    before = {pod["metadata"]["uid"] for pod in await cluster.pods("r")}
    await set_policy(cluster, "team", locked={"training": {"seed": 7}}, limits={"gpus": 0, "activeRuns": 0})
    await cluster.create_run("next")
    await cluster.until("refused", is_refused, "next")  # so the policy is known
    await cluster.change_run("r", environments=[{"name": "letters", "replicas": 2, "config": {"group_size": 4}}])
    await cluster.until_pods("more", lambda pods: len(pods) == 4, "r")
    assert before <= {pod["metadata"]["uid"] for pod in await cluster.pods("r")}
    assert (await config_of(cluster, "r"))["training"]["seed"] == 0
    assert not is_refused(await cluster.run("r"))


async def test_runs_beyond_the_limit_wait_and_the_oldest_is_next(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await set_policy(cluster, "team", limits={"activeRuns": 1})
    await cluster.create_run("c")
    await cluster.until_phase("Running", "c")
    for name in ("b", "a"):  # the order of age is not that of names
        await cluster.create_run(name)
        run = await cluster.until("queued", is_queued, name)
        assert "Queued: TrainingPolicy team allows 1 active run in this namespace" in run["status"]["message"]
        await pause_until_the_clock_ticks(cluster, run)
    await cluster.change_run("c", stop=True)
    await cluster.until_phase("Running", "b")
    assert is_queued(await cluster.run("a"))
    await cluster.delete("trainingruns", "b")
    await cluster.until_phase("Running", "a")


async def pause_until_the_clock_ticks(cluster: ClusterAccess, run: Body) -> None:
    """Ages are in whole seconds."""
    born = run["metadata"]["creationTimestamp"]

    async def look() -> tuple[bool, Body]:
        probe = await cluster.client.create(
            cluster.folder("configmaps"), {"metadata": {"generateName": "clock-"}}, Body, dryRun="All"
        )
        return probe["metadata"]["creationTimestamp"] > born, probe

    await eventually("a second later", look)


async def test_runs_created_at_once_never_exceed_the_limit(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.progress = FINISHED
    await set_policy(cluster, "team", limits={"activeRuns": 2})
    names = [f"r{number}" for number in range(6)]
    for name in names:
        await cluster.create_run(name)
    most = 0
    while True:
        at_work = {pod["metadata"]["labels"]["clotho.dev/run"] for pod in await cluster.all("pods") if is_live(pod)}
        runs = [await cluster.run(name) for name in names]  # afterwards: what is unfinished now was so then
        unfinished = {run["metadata"]["name"] for run in runs if run["status"]["phase"] != "Completed"}
        most = max(most, len(at_work & unfinished))
        if not unfinished:
            break
    assert 1 <= most <= 2


def is_live(pod: Body) -> bool:
    return component(pod) == "trainer" and "deletionTimestamp" not in pod["metadata"]


async def test_a_suspended_run_frees_its_slot_and_resumes_when_one_is_free(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await set_policy(cluster, "team", limits={"activeRuns": 1})
    await cluster.create_run("first")
    await cluster.until_phase("Running", "first")
    await cluster.create_run("second")
    await cluster.until("queued", is_queued, "second")
    await cluster.change_run("first", suspend=True)
    await cluster.until_phase("Running", "second")
    await cluster.change_run("first", suspend=False)
    await cluster.until("queued", is_queued, "first")
    await cluster.change_run("second", stop=True)
    await cluster.until_phase("Running", "first")
