"""Stop, suspend, completion, deadline and time to live: how runs end, and what they leave."""

from datetime import timedelta
from itertools import product

import pytest

from clotho.plan.model import Delete
from clotho_contract.progress import CheckpointInfo, Progress
from unit.plan.run.world import START, World, minimal_spec, running_world


def deleted(world: World) -> list[str]:
    """One pass: whose pods it asks to end."""
    return sorted(
        action.key.name.removeprefix("demo-0123abcd-")
        for action in world.reconcile().actions
        if isinstance(action, Delete)
    )


@pytest.mark.parametrize(("ask", "end"), [("stop", "Stopped"), ("suspend", "Suspended")])
def test_the_order_is_environments_then_trainer_then_api_server(ask: str, end: str) -> None:
    world = running_world()
    world.change_spec(**{ask: True})
    for expected in (["env-letters-0", "env-letters-1"], ["trainer"], ["api-server"]):
        assert deleted(world) == expected
        assert world.phase == "Stopping"
        assert deleted(world) == [], "waits until they are gone"
        world.terminate()
    world.settle()
    assert world.phase == end
    assert not world.pods


def test_the_last_step_before_a_stop_is_remembered() -> None:
    world = running_world()
    world.make_progress(41, checkpoint=CheckpointInfo(step=40, path="/var/lib/clotho/checkpoints/40"))
    world.settle()
    world.change_spec(stop=True)
    world.settle()
    world.terminate()
    world.settle()
    report = Progress(state="saving", step=44, total_steps=100, checkpoint=CheckpointInfo(step=44, path="/x/44"))
    world.end_pod(world.named("trainer"), 0, reason="Stopped", step=44, progress=report)
    for _ in range(3):
        world.settle()
        world.terminate()
    assert world.phase == "Stopped"
    assert world.now_status.progress
    assert world.now_status.progress.step == 44
    assert "checkpoint of step 44 is kept" in world.now_status.message
    assert world.now_status.results
    assert world.now_status.results.path == "/x/44"


def test_environments_may_exit_after_the_last_step_while_the_run_continues() -> None:
    world = running_world()
    world.make_progress(100, "saving")
    for index in range(2):
        world.end_pod(world.named("environment", index), 0)
    world.settle()
    assert (world.phase, world.now_status.restarts) == ("Running", 0)
    for name in [name for name in world.pods if "-env-" in name]:
        world.delete_pod(name)
    world.settle()
    assert (world.phase, world.components()) == ("Running", ["api-server", "trainer"])
    world.make_progress(100, "finished")
    world.settle()
    assert world.phase == "Completed"


def test_a_resumed_run_keeps_its_progress_and_restarts_its_deadline() -> None:
    world = running_world(deadlineSeconds=1000)
    world.make_progress(41)
    world.settle()
    world.change_spec(suspend=True)
    for _ in range(4):
        world.settle()
        world.terminate()
    assert world.phase == "Suspended"
    world.advance(5000)
    assert world.plan().actions == ()
    world.change_spec(suspend=False)
    world.settle()
    world.start_all()
    world.settle()
    status = world.now_status
    assert status.phase == "Running"
    assert status.attempt == 2
    assert status.progress
    assert status.progress.step == 41
    assert status.start_time
    assert status.start_time >= world.now - timedelta(seconds=60)


@pytest.mark.parametrize(("replicas", "stages"), [*product([1], range(3)), *product([3], range(4))])
def test_cancelling_a_suspend_halfway_completes_the_stop_and_resumes_the_run(replicas: int, stages: int) -> None:
    world = running_world(trainer={"replicas": replicas}, deadlineSeconds=1000)
    world.advance(985)
    world.change_spec(suspend=True)
    world.settle()
    for _ in range(stages):
        world.terminate()
        world.settle()
    world.change_spec(suspend=False)
    world.settle()
    while world.phase == "Stopping":
        assert "is resumed" in world.now_status.message
        assert world.plan().wake_at == START + timedelta(seconds=1000)
        world.terminate()
        world.settle()
    world.start_all()
    world.advance(200)
    world.settle()
    status = world.now_status
    assert (status.phase, status.attempt, status.restarts) == ("Running", 2, 0)
    assert "Suspended" not in world.events


def test_a_run_created_suspended_or_stopped_creates_nothing() -> None:
    for ask, end in (("suspend", "Suspended"), ("stop", "Stopped")):
        world = World(minimal_spec(**{ask: True}))
        world.settle()
        assert (world.phase, world.pods, world.objects) == (end, {}, {})
        assert world.now_status.message.startswith(f"{end}; there is no checkpoint.")


def test_completion_requires_a_finished_trainer_and_all_steps() -> None:
    world = running_world()
    world.make_progress(99, "finished")
    world.settle()
    assert world.phase == "Running", "finished, but short of the steps asked for"
    world.make_progress(100, "saving")
    world.settle()
    assert world.phase == "Running", "the last step, but no final checkpoint"
    world.make_progress(100, "finished", reward_mean=0.93, checkpoint=CheckpointInfo(step=100, path="/x/100"))
    world.settle()
    assert world.phase == "Completed"
    results = world.now_status.results
    assert results
    assert (results.step, results.reward_mean, results.path) == (100, 0.93, "/x/100")
    assert results.claim == "demo-0123abcd-trainer"
    assert world.now_status.progress
    assert world.now_status.progress.percent == 100


def test_a_run_of_one_step_completes_its_only_one() -> None:
    world = running_world(training={"steps": 1})
    world.make_progress(1, "finished", total_steps=1, checkpoint=CheckpointInfo(step=1, path="/x/1"))
    world.settle()
    assert world.now_status.message == "Completed its only step; the final checkpoint is written."


def test_a_trainer_that_finishes_between_two_probes_completes_with_its_final_figures() -> None:
    world = running_world()
    world.make_progress(90, reward_mean=0.5)
    report = Progress(state="finished", step=100, total_steps=100, reward_mean=0.95)
    world.end_pod(world.named("trainer"), 0, reason="Finished", step=100, progress=report)
    world.settle()
    assert world.phase == "Completed"
    assert world.now_status.results
    assert world.now_status.results.reward_mean == 0.95


def test_an_answer_of_an_earlier_trainer_completes_nothing() -> None:
    world = running_world()
    world.make_progress(100, "finished")
    del world.pods[world.named("trainer")]
    world.settle()
    assert world.phase == "Starting"


def test_exit_code_0_alone_is_not_completion() -> None:
    world = running_world()
    world.end_pod(world.named("trainer"), 0)
    world.settle()
    assert world.phase == "Starting"
    assert "before the run was done" in world.now_status.message


def test_a_completed_trainer_may_end_by_itself_and_keeps_its_logs() -> None:
    world = running_world()
    world.make_progress(100, "finished")
    world.reconcile()
    assert deleted(world) == ["env-letters-0", "env-letters-1"]
    world.terminate()
    assert deleted(world) == []
    world.end_pod(world.named("trainer"), 0, reason="Finished", step=100)
    assert deleted(world) == ["api-server"]
    world.terminate()
    world.settle()
    assert world.components() == ["trainer"]
    assert world.now_status.components
    assert world.now_status.components.trainer
    assert world.now_status.components.trainer.state == "Succeeded"


def test_a_completed_trainer_that_does_not_end_is_ended() -> None:
    world = running_world()
    world.make_progress(100, "finished")
    world.settle()
    world.terminate()
    world.settle()
    world.advance(61)
    assert deleted(world) == ["trainer"]


def test_raised_steps_are_waited_for_and_reach_the_config_the_trainer_reads() -> None:
    world = running_world()
    secret = next(key for key in world.objects if key.kind == "Secret")
    before = world.objects[secret].contents
    world.change_spec(training={"steps": 200})
    world.settle()
    assert world.objects[secret].contents != before
    world.make_progress(100, "finished")
    world.advance(30)
    world.settle()
    assert world.phase == "Running"
    assert world.now_status.progress
    assert world.now_status.progress.total_steps == 200


def test_a_run_fails_at_its_deadline() -> None:
    world = running_world(deadlineSeconds=3600)
    world.make_progress(7)
    world.settle()
    world.advance(3000)
    wake_at = world.plan().wake_at
    assert wake_at is not None
    assert wake_at <= world.now + timedelta(seconds=600)
    world.advance(601)
    world.settle()
    assert world.phase == "Failed"
    assert "deadlineSeconds (3600): it reached step 7 of 100" in world.now_status.message
    assert deleted(world) == []  # settle has already asked the environments to end
    assert all("deletionTimestamp" in world.pods[world.named("environment", i)]["metadata"] for i in range(2))


def test_progress_of_a_suspended_run_is_not_behind_its_checkpoint() -> None:
    """The trainer made a step after its last report, and its pod is gone before its termination message was read."""
    world = running_world()
    world.make_progress(30, checkpoint=CheckpointInfo(step=20, path="/x/20"))
    world.settle()
    world.change_spec(suspend=True)
    world.settle()
    world.make_progress(30, "saving", checkpoint=CheckpointInfo(step=31, path="/x/31"))
    for _ in range(4):
        world.terminate()
        world.settle()
    status = world.now_status
    assert world.phase == "Suspended"
    assert status.checkpoint
    assert status.progress
    assert (status.checkpoint.step, status.progress.step, status.progress.steps) == (31, 31, "31/100")


def test_a_raised_deadline_counts_at_once() -> None:
    world = running_world(deadlineSeconds=60)
    world.change_spec(deadlineSeconds=6000)
    world.advance(100)
    world.settle()
    assert world.phase == "Running"


def test_a_finished_run_is_deleted_after_its_time_to_live() -> None:
    world = running_world(ttlSecondsAfterFinished=100)
    world.change_spec(stop=True)
    for _ in range(4):
        world.settle()
        world.terminate()
    assert world.phase == "Stopped"
    assert world.now_status.completion_time
    wake_at = world.plan().wake_at
    assert wake_at == world.now_status.completion_time + timedelta(seconds=100)
    assert not world.is_deleted
    world.now = wake_at
    world.reconcile()
    assert world.is_deleted
    world.change_spec(ttlSecondsAfterFinished=None)
    assert world.plan().wake_at is None


def test_a_run_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    import msgspec

    from clotho.plan.model import Observed, Plan
    from clotho.plan.run.plan import plan

    world = World()
    metadata = msgspec.structs.replace(world.run.metadata, deletion_timestamp=world.now)
    run = msgspec.structs.replace(world.run, metadata=metadata)
    assert plan(run, Observed(), world.now, world.settings) == Plan()


def test_restarts_do_not_move_the_deadline() -> None:
    world = running_world(deadlineSeconds=600)
    world.advance(500)
    for name in list(world.pods):
        del world.pods[name]
    world.settle()
    world.advance(101)
    world.settle()
    assert world.phase == "Failed"


def finished(world: World, kind: str) -> str | None:
    found = world.now_status.condition(kind)  # type: ignore[arg-type]
    return found.status if found else None


def test_waiting_for_the_end_works_for_success_and_for_failure() -> None:
    world = running_world()
    assert [finished(world, kind) for kind in ("Finished", "Succeeded", "Failed")] == [None, None, None]
    world.make_progress(100, "finished")
    world.settle()
    assert [finished(world, kind) for kind in ("Finished", "Succeeded", "Failed")] == ["True", "True", "False"]
    world = running_world(deadlineSeconds=60)
    world.advance(61)
    world.settle()
    assert [finished(world, kind) for kind in ("Finished", "Succeeded", "Failed")] == ["True", "False", "True"]
    world = running_world()
    world.change_spec(stop=True)
    for _ in range(4):
        world.settle()
        world.terminate()
    assert [finished(world, kind) for kind in ("Finished", "Succeeded", "Failed")] == ["True", "False", "False"]


@pytest.mark.parametrize(("ends", "state"), [("complete", "Completed"), ("stop", "Stopped")])
def test_components_of_a_finished_run_are_not_missing(ends: str, state: str) -> None:
    world = running_world()
    if ends == "complete":
        world.make_progress(100, "finished")
    else:
        world.change_spec(stop=True)
    for _ in range(6):
        world.settle()
        world.terminate()
        world.advance(61)
    components = world.now_status.components
    assert components
    assert components.api_server
    assert components.trainer
    states = [components.api_server.state, components.trainer.state, *(each.state for each in components.environments)]
    assert (world.pods, states) == ({}, [state] * 3)


def test_steps_are_shown_with_their_total() -> None:
    world = running_world()
    world.make_progress(59)
    world.advance(60)
    world.settle()
    assert world.now_status.progress
    assert world.now_status.progress.steps == "59/100"
