"""Stop, suspend, resume, restart, delete, expiry, a replica, two namespaces, and a node without the resources."""

from __future__ import annotations

import time
from contextlib import suppress

from clotho_dev.cluster.kubectl import KubectlError
from e2e.product.command_line import Clotho
from e2e.product.runs import LIMIT_SECONDS, POLL_SECONDS, Runs, condition, letters, step_of
from rig.namespaces import exists

SAMPLED = "clotho_inference_sampled_tokens_total "


def test_run_is_suspended_resumed_stopped_restarted_and_deleted_without_loss(runs: Runs, clotho: Clotho) -> None:
    runs.kubectl.apply(letters("long", steps=5000, inference={"replicas": 1}))
    runs.wait_for_step("long", 3)
    runs.wait("long", "served by its replica, too", lambda _: sampled_by_replicas(runs, "long") > 0)
    runs.wait_for_phase("long", "Running")

    runs.patch("long", {"suspend": True})
    suspended = runs.wait_for_phase("long", "Suspended")
    saved = suspended["status"]["checkpoint"]["step"]
    assert saved >= 3
    runs.wait("long", "without pods", lambda _: runs.pods("long") == [])

    runs.patch("long", {"suspend": False})
    runs.wait_for_phase("long", "Running")  # not a step: batches collected before make steps without environments
    runs.wait("long", f"beyond step {saved}", lambda run: step_of(run) > saved)

    runs.patch("long", {"stop": True})
    stopped = runs.wait_for_phase("long", "Stopped")
    assert stopped["status"]["checkpoint"]["step"] > saved
    assert condition(stopped, "Ready") != "True"
    runs.wait("long", "without pods", lambda _: runs.pods("long") == [])

    clotho("run", "restart", "long")
    reached = stopped["status"]["checkpoint"]["step"]
    continued = runs.wait_for_step("long-2", 1)
    assert step_of(continued) >= reached, "it starts from the checkpoint of the first"
    runs.wait_for_step("long-2", reached + 1)
    assert runs.get("long")["status"]["checkpoint"] == stopped["status"]["checkpoint"], "which keeps its record"

    runs.kubectl.run("delete", "trainingrun", "long", "long-2", "--timeout=60s")
    deadline = time.monotonic() + LIMIT_SECONDS
    while (left := kinds_left(runs)) != ["PersistentVolumeClaim"]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(POLL_SECONDS)


def sampled_by_replicas(runs: Runs, name: str) -> float:
    """Tokens for environments, which reach a replica by its name; it has the policy from the trainer."""
    tokens = 0.0
    for pod in runs.pods(name, "inference"):
        host, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if pod["status"]["phase"] == "Running":
            path = f"/api/v1/namespaces/{namespace}/pods/{host}:8002/proxy/metrics"
            with suppress(KubectlError):  # it does not listen yet
                lines = runs.kubectl.run("get", "--raw", path).splitlines()
                tokens += sum(float(line.split()[-1]) for line in lines if line.startswith(SAMPLED))
    return tokens


def kinds_left(runs: Runs) -> list[str]:
    items = runs.kubectl.get("pods,services,secrets,networkpolicies,persistentvolumeclaims")["items"]
    return [item["kind"] for item in items]


def test_runs_of_one_name_in_two_namespaces_complete_and_one_expires(runs: Runs, elsewhere: Runs) -> None:
    runs.kubectl.apply(letters("same-name", steps=4, ttlSecondsAfterFinished=1))
    elsewhere.kubectl.apply(letters("same-name", steps=4))
    runs.kubectl.run("wait", "trainingrun/same-name", "--for=delete", "--timeout=300s", timeout=310)
    assert not exists(runs.kubectl, "trainingrun/same-name")
    assert elsewhere.wait_for_phase("same-name", "Completed", "Failed")["status"]["phase"] == "Completed"


def test_missing_gpu_is_reported_with_the_schedulers_message(runs: Runs) -> None:
    run = letters("hungry")
    run["spec"]["trainer"]["gpus"] = 1
    runs.kubectl.apply(run)
    waiting = runs.wait(
        "hungry", "waiting with a reason", lambda run: "gpu" in run.get("status", {}).get("message", "")
    )
    assert "nvidia.com/gpu" in waiting["status"]["message"]
    assert condition(waiting, "Ready") == "False"


def test_misspelt_class_fails_the_run_while_its_trainer_has_no_node(runs: Runs) -> None:
    misspelt = {"name": "letters", "entry": "clotho_environment.builtin.letters:Leters", "config": {"group_size": 16}}
    run = letters("misspelt", environments=[misspelt])
    run["spec"]["trainer"]["gpus"] = 1
    runs.kubectl.apply(run)
    failed = runs.wait_for_phase("misspelt", "Failed")
    assert "Leters" in failed["status"]["message"]
    assert "did you mean Letters?" in failed["status"]["message"]
