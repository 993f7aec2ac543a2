"""A spec that does not decode is reported, and the report is withdrawn once it can be read again."""

from datetime import timedelta

import msgspec
import pytest

from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import UnreadableRun, parse
from clotho.plan.model import Observed
from clotho.plan.run.plan import plan
from clotho.plan.run.refusal import plan_refusal
from unit.plan.kstatus import kstatus
from unit.plan.run.world import START, World, minimal_spec, running_world


def test_a_spec_that_does_not_decode_is_reported_once_with_its_field() -> None:
    body = {
        "metadata": {"name": "demo", "uid": "u", "generation": 3},
        "spec": minimal_spec(training={"steps": "many"}),
        "status": {"phase": "Running"},
    }
    run = parse(body)
    assert isinstance(run, UnreadableRun)
    planned = plan(run, Observed(), START, World().settings)
    assert planned.actions == ()
    assert planned.status
    assert planned.status.phase == "Running"
    assert planned.status.message == "The spec is not valid: spec.training.steps: expected `int`, got `str`."
    assert planned.status.observed_generation == 3
    again = msgspec.structs.replace(run, status=planned.status)
    assert plan(again, Observed(), START + timedelta(hours=1), World().settings).status is None


@pytest.mark.parametrize(("observed_generation", "is_reported"), [(3, False), (2, True)])
def test_a_finished_run_is_refused_only_for_a_spec_that_changed_since(
    observed_generation: int, *, is_reported: bool
) -> None:
    body = {
        "metadata": {"name": "demo", "uid": "u", "generation": 3},
        "spec": minimal_spec(training={"steps": "many"}),
        "status": {"phase": "Completed", "observedGeneration": observed_generation},
    }
    planned = plan(parse(body), Observed(), START, World().settings)
    assert (planned.status is not None) == is_reported


def ended_world(end: str) -> World:
    world = running_world()
    if end == "Completed":
        world.make_progress(100, "finished")
    elif end == "Failed":
        world.spec["deadlineSeconds"] = 60
        world.advance(100)
    else:
        world.change_spec(stop=True)
    for _ in range(5):
        world.settle()
        world.terminate()
    assert world.phase == end
    return world


def refuse_as_0_1_0_does(world: World) -> None:
    """Without a look at whether the run is over."""
    living = msgspec.structs.replace(world.run.status, phase="Running")
    unread = UnreadableRun(metadata=world.run.metadata, problem="spec: unknown field `x`", status=living)
    planned = plan_refusal(unread, world.now)
    assert planned.status
    world.status = msgspec.to_builtins(msgspec.structs.replace(planned.status, phase=world.run.status.phase))


def verdicts(status: TrainingRunStatus) -> list[tuple[str, ...]]:
    return sorted((each.type, each.status, each.reason, each.message) for each in status.conditions)


@pytest.mark.parametrize(("end", "shown"), [("Completed", "Current"), ("Stopped", "Current"), ("Failed", "Failed")])
def test_a_finished_run_that_was_refused_is_shown_as_it_ended(end: str, shown: str) -> None:
    world, never_refused = ended_world(end), ended_world(end)
    before = world.now_status
    refuse_as_0_1_0_does(world)
    assert kstatus(world.run) == "Failed"
    for each in (world, never_refused):
        each.advance(60)
        each.settle()
    after = world.now_status
    assert kstatus(world.run) == shown
    assert (after.phase, after.message, after.completion_time) == (end, before.message, before.completion_time)
    assert verdicts(after) == verdicts(never_refused.now_status)
    assert world.plan().status is None
