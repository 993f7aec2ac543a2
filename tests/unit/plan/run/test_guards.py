"""What must hold whatever goes wrong: stop, suspend, deadline and deletion work; status shows what the trainer has."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from clotho.api.status import ComponentStatus
from clotho.api.training_run import Restarts
from clotho.plan.failures import Failure
from clotho.plan.model import Delete
from clotho.plan.pods import parse_pod
from clotho.plan.run import plan as planner
from clotho.plan.run.restarts import DEPENDENCY_LIMIT, GiveUp, RestartAt, decide_restart
from clotho_contract.progress import CheckpointInfo
from unit.plan.run.world import START, World, running_world, stamp


def break_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise OverflowError("cannot convert float infinity to integer")

    monkeypatch.setattr(planner, "find_stall", broken)


def test_a_defect_in_one_policy_is_reported_and_stops_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world = running_world()
    break_planning(monkeypatch)
    world.settle()
    assert "The operator cannot plan this run (OverflowError: cannot convert" in world.now_status.message
    assert world.phase == "Running"
    world.change_spec(stop=True)
    for _ in range(4):
        world.settle()
        world.terminate()
    assert world.phase == "Stopped"


def test_the_deadline_holds_although_a_policy_is_defective(monkeypatch: pytest.MonkeyPatch) -> None:
    world = running_world(deadlineSeconds=60)
    break_planning(monkeypatch)
    assert world.reconcile().wake_at == START + timedelta(seconds=60)
    world.advance(61)
    world.settle()
    assert (world.phase, world.now_status.message.startswith("The run was not complete within")) == ("Failed", True)


@pytest.mark.parametrize("seconds", [1e308, float("inf"), float("nan"), -1.0, 0.0])
def test_an_invalid_speed_does_not_break_the_status(seconds: float) -> None:
    world = running_world()
    world.make_progress(5, seconds_per_step=seconds)
    world.advance(60)
    world.settle()
    assert world.now_status.progress is not None
    assert world.now_status.progress.step == 5
    assert (world.now_status.progress.eta_seconds or 0) <= 10 * 365 * 86400


def hold(world: World, name: str, phase: str) -> None:
    """A pod that was deleted and whose object somebody's finalizer keeps."""
    pod = world.pods[name]
    pod["metadata"]["deletionTimestamp"] = stamp(world.now)
    pod["status"] = {"phase": phase}
    if phase == "Pending":  # never bound
        del pod["spec"]["nodeName"]


@pytest.mark.parametrize("phase", ["Failed", "Succeeded", "Pending"])
def test_a_pod_that_only_a_finalizer_keeps_does_not_hold_up_a_stop(phase: str) -> None:
    world = running_world()
    world.change_spec(stop=True)
    world.settle()
    for index in range(2):
        hold(world, world.named("environment", index), phase)
    world.settle()
    assert "deletionTimestamp" in world.pods[world.named("trainer")]["metadata"]


def test_a_stop_that_hangs_ends_at_the_deadline() -> None:
    world = running_world(deadlineSeconds=300)
    world.change_spec(stop=True)
    world.settle()  # the environments are asked to end and never do
    assert world.phase == "Stopping"
    wake_at = world.plan().wake_at
    assert wake_at is not None
    assert wake_at <= START + timedelta(seconds=300)
    world.advance(301)
    world.settle()
    assert world.phase == "Failed"
    assert "deadlineSeconds (300)" in world.now_status.message


def test_a_refused_change_does_not_lift_the_deadline() -> None:
    world = running_world(deadlineSeconds=60)
    world.change_spec(training={"steps": 100, "batchSize": 3})
    world.settle()
    assert world.now_status.message.startswith("The spec is not valid")
    world.advance(61)
    world.settle()
    assert world.phase == "Failed"


def deleted(world: World, *finalizers: str) -> list[str]:
    """Which components the planner deletes pods of, pass by pass, until nothing is left to do."""
    order: list[str] = []
    for _ in range(6):
        run = world.run
        metadata = msgspec.structs.replace(run.metadata, deletion_timestamp=world.now, finalizers=finalizers)
        wanted = planner.plan(
            msgspec.structs.replace(run, metadata=metadata), world.observed, world.now, world.settings
        )
        assert wanted.status is None
        for action in wanted.actions:
            assert isinstance(action, Delete)
            order.append(world.pods[action.key.name]["metadata"]["labels"]["app.kubernetes.io/component"])
        world.carry_out(wanted)
        world.terminate()
    return order


def test_a_deleted_run_that_a_finalizer_keeps_ends_its_pods_in_order() -> None:
    world = running_world()
    assert deleted(world, "example.com/hold") == ["environment", "environment", "trainer", "api-server"]
    assert world.pods == {}


def test_a_run_that_is_orphaned_leaves_its_pods_alone() -> None:
    assert deleted(running_world(), "orphan") == []


DEPENDENCY = Failure(
    pod=parse_pod({"metadata": {"name": "trainer", "uid": "pod-1", "creationTimestamp": stamp(START)}}),
    reason="DependencyUnavailable",
    explanation="the trainer failed (DependencyUnavailable): no API server",
    is_infrastructure=True,
)


RAISED = msgspec.structs.replace(DEPENDENCY, reason="StepsRaised", explanation="environment letters ended", exit_code=0)


def wait_before(failed: Failure, failures: int) -> float:
    record = ComponentStatus(name="trainer", state="Failed", dependency_failures=failures)
    decision = decide_restart(failed, record, Restarts(limit=0, backoff_seconds=10), START)
    assert isinstance(decision, RestartAt)
    assert not decision.is_counted
    return (decision.at - START).total_seconds()


@pytest.mark.parametrize("failed", [DEPENDENCY, RAISED])
def test_waiting_grows_and_is_outside_the_budget_of_restarts(failed: Failure) -> None:
    delays = [wait_before(failed, failures) for failures in range(DEPENDENCY_LIMIT)]
    assert delays[0] == 0
    assert 9 <= delays[1] <= 11
    assert delays[1:8] == sorted(delays[1:8])
    assert sum(delays) > 3600, "what is missing gets time to come back"


@pytest.mark.parametrize("failed", [DEPENDENCY, RAISED])
def test_restarts_that_a_pod_reports_as_free_are_limited(failed: Failure) -> None:
    record = ComponentStatus(name="trainer", state="Failed", dependency_failures=DEPENDENCY_LIMIT)
    decision = decide_restart(failed, record, Restarts(), START)
    assert decision == GiveUp(failed.reason, f"{failed.explanation}; 20 restarts in a row did not help")


def test_restarts_for_a_dependency_in_a_row_are_counted_until_a_pod_lasts() -> None:
    world = running_world()

    def fail_once() -> int:
        world.end_pod(world.named("trainer"), 1, reason="DependencyUnavailable", message="no API server")
        world.settle()
        assert world.now_status.components
        assert world.now_status.components.trainer
        count = world.now_status.components.trainer.dependency_failures
        world.advance(700)
        world.settle()
        world.start_all()
        world.settle()
        return count

    assert [fail_once() for _ in range(3)] == [1, 2, 3]
    pod = world.pods[world.named("trainer")]
    pod["metadata"]["creationTimestamp"] = stamp(world.now - timedelta(hours=1))
    world.end_pod(world.named("trainer"), 1, reason="DependencyUnavailable", message="no API server")
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    ended["finishedAt"] = stamp(world.now)
    world.settle()
    assert world.now_status.components
    assert world.now_status.components.trainer
    assert world.now_status.components.trainer.dependency_failures == 1


def test_damaged_checkpoints_fail_the_run_with_the_trainers_message() -> None:
    world = running_world()
    message = "none of 3 checkpoints can be read; set training.checkpoint.onDamage to StartOver"
    world.end_pod(world.named("trainer"), 1, reason="CheckpointsDamaged", message=message)
    world.settle()
    assert world.phase == "Failed"
    assert world.now_status.message == f"The trainer failed (CheckpointsDamaged): {message}."


@pytest.mark.parametrize(("ephemeral", "expected"), [(False, ["80"]), (True, [])])
def test_a_new_trainer_gets_the_step_of_the_last_checkpoint(ephemeral: bool, expected: list[str]) -> None:
    """So that it does not start at step 1 in silence where the checkpoints were deleted."""
    world = running_world(storage={"ephemeral": ephemeral}, restarts={"backoffSeconds": 0})

    def known_steps() -> list[str]:
        (main,) = world.pods[world.named("trainer")]["spec"]["containers"]
        return [each["value"] for each in main["env"] if each["name"] == "CLOTHO_CHECKPOINT_STEP"]

    assert known_steps() == []
    world.make_progress(90, checkpoint=CheckpointInfo(step=80, path="/c/80"))
    world.advance(60)
    world.settle()
    world.end_pod(world.named("trainer"), 137)
    world.settle()
    assert known_steps() == expected


def test_status_shows_the_step_that_the_trainer_has() -> None:
    world = running_world()
    world.make_progress(90, checkpoint=CheckpointInfo(step=80, path="/c/80"))
    world.advance(60)
    world.settle()
    world.end_pod(world.named("trainer"), 137, container_reason="OOMKilled")
    world.settle()
    world.advance(60)
    world.settle()
    world.start_all()
    world.make_progress(0, "loading")
    world.advance(60)
    world.settle()
    assert world.now_status.progress
    assert (world.now_status.progress.step, world.now_status.checkpoint) == (90, CheckpointInfo(step=80, path="/c/80"))
    world.make_progress(0, "waiting")  # it starts over
    world.advance(60)
    world.settle()
    assert world.now_status.progress
    assert (world.now_status.progress.step, world.now_status.checkpoint) == (0, None)
    assert [sample.step for sample in world.now_status.history if sample.step] == []


@pytest.mark.parametrize("change", [{"stop": True}, {"suspend": True}])
def test_an_ephemeral_run_never_reports_a_kept_checkpoint(change: dict[str, Any]) -> None:
    world = running_world(storage={"ephemeral": True})
    world.make_progress(50, checkpoint=CheckpointInfo(step=40, path="/c/40"))
    world.advance(60)
    world.settle()
    world.change_spec(**change)
    for _ in range(4):
        world.settle()
        world.terminate()
    assert "nothing is kept, because storage.ephemeral is true" in world.now_status.message
    assert "checkpoint" not in world.now_status.message
    if results := world.now_status.results:
        assert (results.claim, results.path) == ("", "")
