"""Whatever is killed while a run trains, it completes, from where its last checkpoint was."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from cluster import chart
from cluster.kubectl import Kubectl
from e2e.product.runs import Object, Runs, letters, step_of

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


def test_run_survives_the_loss_of_everything_in_turn(runs: Runs, kubectl: Kubectl) -> None:
    operators = kubectl.in_namespace(chart.NAMESPACE)
    run = letters("tough", steps=STEPS, restarts={"limit": 10, "backoffSeconds": 0})
    run["spec"]["training"]["checkpoint"] = {"everySteps": 5, "keep": 2}
    runs.kubectl.apply(run)
    strikes: list[tuple[str, Callable[[], None]]] = [
        ("trainer", delete_pod(runs, "trainer")),
        ("api-server", delete_pod(runs, "api-server")),
        ("environment", delete_pod(runs, "environment")),
        ("operator", lambda: _delete_operator(operators)),
        ("trainer's process", kill_process("clotho_trainer")),
        ("API server's process", kill_process("clotho_api_server")),
    ]
    for title, strike in strikes:
        before = step_of(runs.wait(f"{run['metadata']['name']}", "training", _is_training))
        strike()
        after = runs.wait_for_step("tough", min(before + 10, STEPS))
        print(f"{title} lost at step {before}; now at {step_of(after)}, restarts {after['status'].get('restarts', 0)}")

    done = runs.wait_for_phase("tough", "Completed", "Failed")
    status = done["status"]
    assert status["phase"] == "Completed", status["message"]
    assert status["results"]["step"] == STEPS
    assert status["results"]["rewardMean"] > 0.9
    assert status["attempt"] >= 3, "the trainer was lost twice"
    assert status["components"]["apiServer"]["restarts"] >= 2
    steps = [sample["step"] for sample in status["history"]]
    assert steps == sorted(steps)


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
