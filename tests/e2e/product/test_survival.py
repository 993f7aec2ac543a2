"""Whatever is killed while a run trains, it completes, from where its last checkpoint was."""

from __future__ import annotations

from collections.abc import Callable

from clotho_dev.cluster import chart
from clotho_dev.cluster.kubectl import Kubectl
from e2e.product.books import Books
from e2e.product.killing import Killer
from e2e.product.pod_watch import PodWatch
from e2e.product.runs import Object, Runs, letters, step_of
from rig.pods import Pods

STEPS = 160


def test_run_survives_the_loss_of_each_component(runs: Runs, kubectl: Kubectl, python_image: str) -> None:
    operators = kubectl.in_namespace(chart.NAMESPACE)
    run = letters("tough", steps=STEPS, restarts={"limit": 10, "backoffSeconds": 0})
    run["spec"]["training"]["checkpoint"] = {"everySteps": 5, "keep": 2}
    runs.kubectl.apply(run)
    killer = Killer(runs, "tough")
    strikes: list[tuple[str, Callable[[], None], str]] = [
        ("trainer", lambda: killer.delete_pod("trainer"), "A pod of the trainer was gone"),
        ("API server", lambda: killer.delete_pod("api-server"), "A pod of the API server was gone"),
        ("environment", lambda: killer.delete_pod("environment"), "A pod of environment letters was gone"),
        ("operator", lambda: _delete_operator(operators), ""),
        ("trainer's process", lambda: killer.kill_process("trainer"), "exit code 137"),
        ("API server's process", lambda: killer.kill_process("api-server"), "exit code 137"),
    ]
    acknowledged: dict[str, int] = {}  # by environment pod
    selector = "app.kubernetes.io/instance=tough,app.kubernetes.io/component=trainer"
    with PodWatch(runs.kubectl, selector) as trainers:
        for title, strike, words in strikes:
            before = step_of(runs.wait("tough", "training", _is_training))
            acknowledged |= _acknowledged(runs)
            known = len(_restart_events(runs))
            strike()
            if words:
                _wait_for_event(runs, known, words)
            after = runs.wait_for_step("tough", min(before + 10, STEPS))
            restarts = after["status"].get("restarts", 0)
            print(f"{title} lost at step {before}; now at {step_of(after)}, restarts {restarts}")
        done = runs.wait_for_phase("tough", "Completed", "Failed")

    assert len(set(killer.killed)) == 5, "five pods were destroyed, none of them twice"
    assert len(trainers.pods()) == 3, "the first trainer and one for each of the two that were killed"
    assert trainers.most_at_once() == 1, "two trainers never share a run"
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
    components = status["components"]
    counts = {name: components[name].get("restarts", 0) for name in ("trainer", "apiServer")}
    counts["environment"] = components["environments"][0].get("restarts", 0)
    assert counts == {"trainer": 2, "apiServer": 2, "environment": 1}, "one restart for each kill"
    assert status["attempt"] == 1 + counts["trainer"]
    assert status["restarts"] == sum(counts.values()) == len(_restart_events(runs))


def _check_books(runs: Runs, reader: Pods, acknowledged: int, run: Object) -> None:
    """A group that was acknowledged to an environment is trained once, or still waits."""
    books = Books.of_finished(runs, "tough", reader)
    print(f"{acknowledged} groups were seen acknowledged; {books}")
    books.check(run)
    assert books.taken >= acknowledged > 0


def _acknowledged(runs: Runs) -> dict[str, int]:
    """How many groups each environment pod has had acknowledged, by the pods' uids."""
    counts = {}
    for pod in runs.pods("tough", "environment"):
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        path = f"/api/v1/namespaces/{namespace}/pods/{name}:8003/proxy/metrics"
        lines = runs.kubectl.run("get", "--raw", path).splitlines()
        sent = 'clotho_environment_rollouts_total{outcome="sent"} '
        counts[pod["metadata"]["uid"]] = sum(int(float(line.split()[-1])) for line in lines if line.startswith(sent))
    return counts


def _wait_for_event(runs: Runs, known: int, words: str) -> None:
    runs.wait("tough", f"restarted: {words}", lambda _: any(words in text for text in _restart_events(runs)[known:]))


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
