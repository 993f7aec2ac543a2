"""A run without environments: it has only a trainer and waits for no other component."""

from typing import Any

import pytest

from unit.plan.kstatus import kstatus
from unit.plan.run.world import World, minimal_spec

INLINE = {
    "dataset": {"path": "train.jsonl", "configMapName": "sums"},
    "rewards": {"measures": [{"name": "correct", "entry": "rewards:correct"}]},
}


def inline_world(**changes: Any) -> World:
    spec = minimal_spec(**{"inline": INLINE} | changes)
    del spec["environments"]
    world = World(spec)
    world.settle()
    world.start_all()
    world.settle()
    return world


def test_only_the_trainer_is_made_and_that_is_enough() -> None:
    world = inline_world()
    assert world.components() == ["trainer"]
    assert sorted(key.kind for key in world.objects) == ["PersistentVolumeClaim", "Secret", "Service"]
    assert world.phase == "Running"
    assert kstatus(world.run) == "Current"
    status = world.now_status
    assert status.components is not None
    assert status.components.api_server is None
    assert [each.type for each in status.conditions] == ["Accepted", "TrainerReady", "Ready"]


def test_an_inline_run_completes_when_the_trainer_reports_finished() -> None:
    world = inline_world()
    world.make_progress(100, state="finished")
    world.settle()
    assert world.phase == "Completed"


def test_an_inline_run_completes_when_the_dataset_ends_first() -> None:
    world = inline_world(inline=INLINE | {"dataset": INLINE["dataset"] | {"epochs": 1}})
    world.make_progress(30, total_steps=40)
    world.advance(60)
    world.settle()
    assert world.now_status.message == "Training: step 30/40."
    world.make_progress(40, state="finished", total_steps=40)
    world.settle()
    assert world.phase == "Completed"
    assert "Completed all 40 steps" in world.now_status.message


def test_a_lost_trainer_is_replaced() -> None:
    world = inline_world()
    world.end_pod(world.named("trainer"), 137)
    world.settle()
    world.advance(60)
    world.settle()
    world.start_all()
    world.settle()
    assert (world.phase, world.now_status.restarts, world.now_status.attempt) == ("Running", 1, 2)


def test_a_stall_can_only_be_the_trainers() -> None:
    world = inline_world(stall={"afterSeconds": 600})
    world.make_progress(5)
    world.settle()
    world.advance(601)
    world.settle()
    assert world.now_status.stall is not None
    assert world.now_status.stall.cause == "TrainerHung"


def test_stop_ends_the_trainer() -> None:
    world = inline_world()
    world.change_spec(stop=True)
    world.settle()
    world.terminate()
    world.settle()
    assert world.phase == "Stopped"
    assert not world.pods


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environments": [{"name": "letters"}], "inline": INLINE}, "either environments or inline"),
        ({}, "either environments or inline"),
        ({"inline": INLINE | {"rewards": {}}}, "nothing is rewarded"),
        ({"inline": INLINE | {"dataset": {}}}, "either path or hub"),
        ({"inline": INLINE, "training": {"steps": 1, "worldModel": {"coefficient": 0.1}}}, "needs inline.tools"),
        (
            {"inline": INLINE | {"code": {"configMapName": "a", "claimName": "b"}}},
            "inline.code: configMapName and claimName exclude each other",
        ),
    ],
)
def test_invalid_inline_specs_are_refused(changes: dict[str, Any], words: str) -> None:
    world = World({"model": {"name": "m"}, "training": {"steps": 1}, **changes})
    world.settle()
    assert words in world.now_status.message
    assert not world.pods
