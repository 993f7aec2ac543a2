"""The operator's clock is set: backwards nothing happens twice, forwards a run that trains is not taken for stalled."""

from datetime import timedelta

import pytest

from unit.plan.run.world import START, World, minimal_spec, running_world

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("jump", [-HOUR, -24 * HOUR, timedelta(seconds=-1)])
def test_running_run_stays_as_it_is_when_the_clock_goes_back(jump: timedelta) -> None:
    world = running_world(stall={"afterSeconds": 600, "action": "Restart"}, deadlineSeconds=7200)
    pods = {name: pod["metadata"]["uid"] for name, pod in world.pods.items()}
    world.now += jump
    world.make_progress(step=6)
    world.settle()
    assert world.phase == "Running"
    assert {name: pod["metadata"]["uid"] for name, pod in world.pods.items()} == pods


def test_run_starts_when_the_clock_goes_back_behind_its_creation() -> None:
    world = World(minimal_spec())
    world.now = START - HOUR
    world.settle()
    world.start_all()
    world.make_progress(step=1)
    world.settle()
    assert world.phase == "Running"
    assert world.now_status.attempt == 1


def test_training_run_has_not_stalled_when_the_clock_jumps_ahead() -> None:
    world = running_world(stall={"afterSeconds": 600, "action": "Restart"})
    world.make_progress(step=5)
    world.settle()
    world.now += HOUR
    world.make_progress(step=6)
    world.settle()
    assert world.phase == "Running"
    assert world.now_status.restarts == 0
    assert "Stalled" not in world.events


def test_restart_is_delayed_by_the_jump_at_most_when_the_clock_goes_back() -> None:
    world = running_world(restarts={"limit": 3, "backoffSeconds": 10})
    world.end_pod(world.named("trainer"))
    world.reconcile()
    world.now -= HOUR
    wake_at = world.plan().wake_at
    assert wake_at is not None
    assert wake_at <= world.now + HOUR + timedelta(seconds=11)
    world.settle(passes=60)
    assert world.now_status.restarts == 1
