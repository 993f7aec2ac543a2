"""The pods of a run are gone: its curves, samples, evaluations and logs are still there, through the command line."""

import json
from typing import Any

from clotho_dev.cluster.control_plane import ControlPlane
from rig.cluster_access import Body, ClusterAccess, component
from rig.commands import Clotho
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

HOSTILE = "four\x1b[2J\u202e<script>"


def history(*steps: int, answer: str = HOSTILE) -> Body:
    group = {"step": steps[-1], "kind": "newest", "environment": "letters", "prompt": "2+2?", "version": steps[-1] - 1}
    return {
        "series": {"steps": steps, "figures": {"rewardMean": [step / 10 for step in steps]}},
        "samples": [group | {"answers": [{"text": answer, "reward": 1.0, "advantage": 0.5}]}],
        "evaluations": [
            {"step": 2, "time": "2026-11-15T12:00:00Z", "environment": "letters", "figures": {"accuracy": 0.75}}
        ],
    }


def log_of(*steps: int) -> str:
    last: dict[str, Any] = {"time": "t", "level": "info", "message": "m", "history": history(*steps)}
    return f"{json.dumps(last)}\n"


def ending(step: int) -> Body:
    done = {"state": "finished", "step": step, "totalSteps": 100, "checkpoint": {"step": step, "path": "/ckpt/100"}}
    return {"reason": "Finished", "message": "done", "step": step, "progress": {**done, "rewardMean": 0.9}}


def steps_kept(config_maps: list[Body]) -> list[int]:
    series = [json.loads(each["data"]["series.json"]) for each in config_maps if "series.json" in each["data"]]
    return [step for each in series for step in each["steps"]]


async def trainer(cluster: ClusterAccess) -> Body:
    return next(pod for pod in await cluster.pods("k") if component(pod) == "trainer")


async def test_a_finished_run_without_pods_still_has_curves_samples_and_logs(
    control_plane: ControlPlane, cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    clotho = Clotho(control_plane.kubeconfig, cluster.namespace)
    await kubelet.serve_logs(control_plane.authority.issue_server("fake-kubelet", ["127.0.0.1"]))
    kubelet.logs = dict.fromkeys(("trainer", "api-server", "environment"), "first start \x1b[2J\n")
    kubelet.history = history(1, 2, 3)
    kubelet.progress |= {"step": 3}
    await cluster.create_run("k", restarts={"backoffSeconds": 0})
    await cluster.until_phase("Running", "k")
    await cluster.until_objects("configmaps", "with curves", lambda found: len(found) == 1, "k")
    assert (await clotho("run", "plot", "k")).out.endswith("steps 1 to 3\n"), "while it trains"

    await kubelet.fail(await trainer(cluster))
    await cluster.until("restarted", lambda run: run["status"].get("attempt") == 2, "k")
    await cluster.until_phase("Running", "k")
    # The last steps are only in the log, because the trainer ended before anybody fetched them.
    kubelet.logs = dict.fromkeys(kubelet.logs, "second start\n") | {"trainer": f"second start\n{log_of(4, 5)}"}
    kubelet.history = {}
    await kubelet.fail(await trainer(cluster), exit_code=0, message=json.dumps(ending(100)))
    await cluster.until_phase("Completed", "k")
    await cluster.until_pods("only its trainer", lambda pods: [*map(component, pods)] == ["trainer"], "k")
    await cluster.delete("pods", (await trainer(cluster))["metadata"]["name"])
    await cluster.until_pods("gone", lambda pods: not pods, "k")

    plotted = await clotho("run", "plot", "k", "-o", "json")
    series: Any = plotted.data
    assert (series["steps"], series["figures"]["rewardMean"]) == ([1, 2, 3, 4, 5, 100], [0.1, 0.2, 0.3, 0.4, 0.5, 0.9])
    samples = (await clotho("run", "samples", "k")).out
    assert "four\ufffd[2J\ufffd<script>" in samples, "control characters are replaced"
    first, second = [(await clotho("run", "logs", "k", "--attempt", n)).out.splitlines() for n in ("1", "2")]
    assert first == ["trainer  first start \ufffd[2J"]
    assert sorted(second) == ["api-server  second start", "letters-0  second start", "trainer  second start"]
    assert sorted((await clotho("run", "logs", "k")).out.splitlines()) == sorted(second)
    pointers = [event["message"] for event in await cluster.all("events") if event["reason"] == "LogsKept"]
    assert sorted(pointers) == [
        f"The end of the logs is kept: clotho run logs k -n {cluster.namespace} --attempt {n}" for n in (1, 2)
    ]

    kept = [each["metadata"] for each in await cluster.of_run("configmaps", "k")]
    assert [each["ownerReferences"][0]["name"] for each in kept] == ["k", "k"], "deleted with the run"


async def test_a_trainer_that_no_longer_answers_at_the_end_leaves_its_history_in_its_log(
    control_plane: ControlPlane, cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await kubelet.serve_logs(control_plane.authority.issue_server("fake-kubelet", ["127.0.0.1"]))
    kubelet.history = None
    kubelet.logs = {"trainer": "step 100\n"}
    await cluster.create_run("k")
    await cluster.until_phase("Running", "k")
    kubelet.progress = ending(100)["progress"]
    await cluster.until_phase("Completed", "k")
    await cluster.until_objects("configmaps", "with its last step", lambda found: steps_kept(found) == [100], "k")

    kubelet.logs = {"trainer": f"step 100\n{log_of(98, 99, 100)}"}
    await kubelet.fail(await trainer(cluster), exit_code=0, message=json.dumps(ending(100)))
    await cluster.until_objects("configmaps", "whole", lambda found: steps_kept(found) == [98, 99, 100], "k")


async def test_a_node_that_cannot_read_a_log_is_asked_again(
    control_plane: ControlPlane, cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await kubelet.serve_logs(control_plane.authority.issue_server("fake-kubelet", ["127.0.0.1"]))
    kubelet.has_logs = False
    kubelet.logs = {"trainer": log_of(98, 99, 100)}
    await cluster.create_run("k")
    await cluster.until_phase("Running", "k")
    await kubelet.fail(await trainer(cluster), exit_code=0, message=json.dumps(ending(100)))
    await cluster.until_phase("Completed", "k")
    await cluster.until_objects("configmaps", "with its last step", lambda found: steps_kept(found) == [100], "k")

    kubelet.has_logs = True
    await cluster.until_objects("configmaps", "whole", lambda found: steps_kept(found) == [98, 99, 100], "k")
