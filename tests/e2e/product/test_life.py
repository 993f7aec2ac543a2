"""Stop, suspend, resume, delete, expiry, two namespaces, and a node without the requested resources."""

from __future__ import annotations

import time

from e2e.product.runs import PATIENCE_SECONDS, POLL_SECONDS, Runs, condition, letters, step_of
from rig.namespaces import exists


def test_stop_saves_a_checkpoint_and_ends_all_pods(runs: Runs) -> None:
    runs.kubectl.apply(letters("stopped", steps=5000))
    runs.wait_for_step("stopped", 3)
    runs.patch("stopped", {"stop": True})
    run = runs.wait_for_phase("stopped", "Stopped")
    assert run["status"]["checkpoint"]["step"] >= 3
    runs.wait("stopped", "without pods", lambda _: runs.pods("stopped") == [])
    assert condition(run, "Ready") != "True"


def test_suspended_run_resumes_from_its_checkpoint(runs: Runs) -> None:
    runs.kubectl.apply(letters("napping", steps=40))
    runs.wait_for_step("napping", 3)
    runs.patch("napping", {"suspend": True})
    asleep = runs.wait_for_phase("napping", "Suspended")
    saved = asleep["status"]["checkpoint"]["step"]
    runs.wait("napping", "without pods", lambda _: runs.pods("napping") == [])
    runs.patch("napping", {"suspend": False})
    awake = runs.wait(
        "napping", "awake", lambda run: run["status"]["phase"] in ("Running", "Completed") and step_of(run) > saved
    )
    assert step_of(awake) > saved
    assert runs.wait_for_phase("napping", "Completed", "Failed")["status"]["phase"] == "Completed"


def test_deleted_run_leaves_only_the_retained_volume(runs: Runs) -> None:
    runs.kubectl.apply(letters("gone", steps=5000))
    runs.wait_for_step("gone", 1)
    runs.kubectl.run("delete", "trainingrun", "gone", "--timeout=60s")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := kinds_left(runs)) != ["PersistentVolumeClaim"]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(POLL_SECONDS)


def kinds_left(runs: Runs) -> list[str]:
    items = runs.kubectl.get("pods,services,secrets,networkpolicies,persistentvolumeclaims")["items"]
    return [item["kind"] for item in items]


def test_finished_run_expires(runs: Runs) -> None:
    runs.kubectl.apply(letters("brief", steps=2, ttlSecondsAfterFinished=1))
    runs.kubectl.run("wait", "trainingrun/brief", "--for=delete", "--timeout=240s", timeout=250)
    assert not exists(runs.kubectl, "trainingrun/brief")


def test_two_namespaces_at_once(runs: Runs, elsewhere: Runs) -> None:
    for where in (runs, elsewhere):
        where.kubectl.apply(letters("same-name", steps=10))
    for where in (runs, elsewhere):
        assert where.wait_for_phase("same-name", "Completed", "Failed")["status"]["phase"] == "Completed"


def test_missing_gpu_is_reported_with_the_schedulers_message(runs: Runs) -> None:
    run = letters("hungry")
    run["spec"]["trainer"]["gpus"] = 1
    runs.kubectl.apply(run)
    waiting = runs.wait(
        "hungry", "waiting with a reason", lambda run: "gpu" in run.get("status", {}).get("message", "")
    )
    assert "nvidia.com/gpu" in waiting["status"]["message"]
    assert condition(waiting, "Ready") == "False"
