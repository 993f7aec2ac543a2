"""A trainer of three pods without GPUs learns as one, whichever rank is killed, and resumes where it was."""

from __future__ import annotations

from e2e.product.books import Books
from e2e.product.killing import Killer
from e2e.product.pod_watch import PodWatch
from e2e.product.runs import Object, Runs, letters, step_of
from rig.pods import Pods


def test_ranks_survive_the_loss_of_each_other_and_resume_at_their_step(runs: Runs, python_image: str) -> None:
    run = letters("ranks", restarts={"limit": 2, "backoffSeconds": 0})
    run["spec"]["trainer"]["replicas"] = 3
    run["spec"]["training"]["checkpoint"] = {"everySteps": 5, "keep": 2}
    runs.kubectl.apply(run)
    killer = Killer(runs, "ranks")
    with PodWatch(runs.kubectl, "app.kubernetes.io/instance=ranks,app.kubernetes.io/component=trainer") as trainers:
        for restarts, host in enumerate(("trainer", "trainer-2"), start=1):
            _lose(runs, killer, host, restarts)
        runs.patch("ranks", {"suspend": True})
        rest = runs.wait_for_phase("ranks", "Suspended")["status"]
        saved = rest["checkpoint"]["step"]
        assert saved >= rest["progress"]["step"], "the last step is in the checkpoint"
        runs.patch("ranks", {"suspend": False})
        runs.wait("ranks", f"beyond step {saved}", lambda run: _is_training(run) and step_of(run) > saved)
        done = runs.wait_for_phase("ranks", "Completed", "Failed")

    status = done["status"]
    assert status["phase"] == "Completed", status["message"]
    trainer = status["components"]["trainer"]
    assert (trainer["restarts"], status["attempt"]) == (2, 4), "one for each kill, and a new attempt after the rest"
    assert (len(trainers.pods()), trainers.most_at_once()) == (12, 3), "four attempts of three pods, one at a time"
    assert max(sample["rewardMean"] for sample in status["history"][-3:]) > 0.8, "it learned"
    Books.of_finished(runs, "ranks", Pods(runs.kubectl, python_image)).check(run)


def _lose(runs: Runs, killer: Killer, host: str, restarts: int) -> None:
    before = step_of(runs.wait("ranks", "training", _is_training))
    killer.kill_process("trainer", host)
    after = runs.wait("ranks", "restarted", lambda run: run["status"].get("restarts", 0) == restarts)
    print(f"{host} lost at step {before}: {after['status']['components']['trainer']['lastExit']['message']}")
    runs.wait("ranks", "training again", lambda run: _is_training(run) and step_of(run) > before)


def _is_training(run: Object) -> bool:
    status = run.get("status", {})
    ranks = (status.get("components") or {}).get("trainer", {}).get("ranks")
    return status.get("phase") == "Running" and ranks == "3/3" and step_of(run) > 0
