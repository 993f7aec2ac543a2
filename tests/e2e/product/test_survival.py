"""Whatever is killed while a run trains, it completes, from where its last checkpoint was."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from clotho_dev.cluster import chart
from clotho_dev.cluster.kubectl import Kubectl
from e2e.product.books import Books
from e2e.product.runs import Object, Runs, letters, step_of
from rig.pods import Pods

STEPS = 160


def delete_pod(runs: Runs, component: str) -> Callable[[], None]:
    def strike() -> None:
        pod = runs.pods("tough", component)[0]["metadata"]["name"]
        runs.kubectl.run("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")

    return strike


def kill_process(module: str) -> Callable[[], None]:
    """As the kernel's OOM killer would: the container's first process goes without a word."""

    def strike() -> None:
        victims = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _runs(path, module)]
        assert victims, f"no process runs {module}"
        os.kill(min(victims), signal.SIGKILL)

    return strike


def _runs(cmdline: Path, module: str) -> bool:
    try:
        words = cmdline.read_bytes().split(b"\0")
        group = (cmdline.parent / "cgroup").read_text()
    except OSError:
        return False
    return module.encode() in words and "clotho-embedded" in group


def test_run_survives_the_loss_of_everything_in_turn(runs: Runs, kubectl: Kubectl, python_image: str) -> None:
    operators = kubectl.in_namespace(chart.NAMESPACE)
    run = letters("tough", steps=STEPS, restarts={"limit": 10, "backoffSeconds": 0})
    run["spec"]["training"]["checkpoint"] = {"everySteps": 5, "keep": 2}
    runs.kubectl.apply(run)
    strikes: list[tuple[str, Callable[[], None], str]] = [
        ("trainer", delete_pod(runs, "trainer"), "A pod of the trainer was gone"),
        ("API server", delete_pod(runs, "api-server"), "A pod of the API server was gone"),
        ("environment", delete_pod(runs, "environment"), "A pod of environment letters was gone"),
        ("operator", lambda: _delete_operator(operators), ""),
        ("trainer's process", kill_process("clotho_trainer"), "exit code 137"),
        ("API server's process", kill_process("clotho_api_server"), "exit code 137"),
    ]
    acknowledged: dict[str, int] = {}  # by environment pod
    for title, strike, words in strikes:
        before = step_of(runs.wait("tough", "training", _is_training))
        acknowledged |= _acknowledged(runs)
        told = len(_restart_events(runs))
        strike()
        if words:
            _wait_for_news(runs, told, words)
        after = runs.wait_for_step("tough", min(before + 10, STEPS))
        print(f"{title} lost at step {before}; now at {step_of(after)}, restarts {after['status'].get('restarts', 0)}")

    done = runs.wait_for_phase("tough", "Completed", "Failed")
    status = done["status"]
    assert status["phase"] == "Completed", status["message"]
    assert status["results"]["step"] == STEPS
    best = max(sample["rewardMean"] for sample in status["history"][-3:])
    assert best > 0.8, "it learned; one letter of the eight may stay unknown for good"
    steps = [sample["step"] for sample in status["history"]]
    assert steps == sorted(steps)
    _check_restarts(runs, status)
    _check_books(runs, Pods(runs.kubectl, python_image), sum(acknowledged.values()), run)


def _check_restarts(runs: Runs, status: Object) -> None:
    parts = status["components"]
    counts = {name: parts[name].get("restarts", 0) for name in ("trainer", "apiServer")}
    counts["environment"] = parts["environments"][0].get("restarts", 0)
    assert counts["trainer"] >= 2, "deleted once, killed once"
    assert counts["apiServer"] >= 2, "deleted once, killed once"
    assert counts["environment"] >= 1
    assert status["attempt"] == 1 + counts["trainer"]
    assert status["restarts"] == sum(counts.values()) == len(_restart_events(runs))


def _check_books(runs: Runs, reader: Pods, acknowledged: int, run: Object) -> None:
    """What environments were told is on disk is trained once, or still waits."""
    (pod,) = runs.pods("tough", "api-server")
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"] if _is_claim(volume)]
    runs.kubectl.run("wait", "--for=delete", f"pod/{pod['metadata']['name']}", "--timeout=120s", timeout=130)
    books = Books.of(reader, claims[0])
    print(f"{acknowledged} groups were seen acknowledged; {books}")
    training, (environment,) = run["spec"]["training"], run["spec"]["environments"]
    assert books.taken == books.trained + books.waiting
    assert books.taken >= acknowledged > 0
    assert books.steps == list(range(1, STEPS + 1)), "each step has the one batch that it trained"
    assert books.trained == STEPS * training["batchSize"] // environment["config"]["group_size"]


def _is_claim(volume: Object) -> bool:
    return "persistentVolumeClaim" in volume


def _acknowledged(runs: Runs) -> dict[str, int]:
    """How many groups each environment pod says that the API server has taken, by the pods' uids."""
    counts = {}
    for pod in runs.pods("tough", "environment"):
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        path = f"/api/v1/namespaces/{namespace}/pods/{name}:8003/proxy/metrics"
        lines = runs.kubectl.run("get", "--raw", path).splitlines()
        sent = 'clotho_environment_rollouts_total{outcome="sent"} '
        counts[pod["metadata"]["uid"]] = sum(int(float(line.split()[-1])) for line in lines if line.startswith(sent))
    return counts


def _wait_for_news(runs: Runs, known: int, words: str) -> None:
    runs.wait("tough", f"told of: {words}", lambda _: any(words in news for news in _restart_events(runs)[known:]))


def _restart_events(runs: Runs) -> list[str]:
    """The messages, oldest first."""
    events = runs.kubectl.get("events", "--field-selector=involvedObject.name=tough,reason=Restarting")["items"]
    return [event["message"] for event in sorted(events, key=lambda event: str(event["eventTime"]))]


def _delete_operator(operators: Kubectl) -> None:
    operators.run(
        "delete",
        "pod",
        "--selector=app.kubernetes.io/component=operator",
        "--grace-period=0",
        "--force",
        "--wait=false",
    )


def _is_training(run: Object) -> bool:
    return run.get("status", {}).get("phase") == "Running" and step_of(run) > 0
