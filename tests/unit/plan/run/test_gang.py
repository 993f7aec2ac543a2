"""A trainer of several pods: started, replaced, stopped and completed as one."""

from datetime import timedelta
from typing import Any

import pytest

from clotho.api.status import TrainerStatus
from clotho.plan.model import RESTARTING, Create, Delete
from clotho_contract.progress import Progress
from unit.plan.run.world import World, minimal_spec, running_world

TRAINERS = ["trainer", "trainer-1", "trainer-2"]


def gang_world(**changes: Any) -> World:
    return running_world(**{"trainer": {"replicas": 3}, **changes})


def trainer(world: World) -> TrainerStatus:
    assert world.now_status.components
    assert world.now_status.components.trainer
    return world.now_status.components.trainer


def short(name: str) -> str:
    return name.removeprefix("demo-0123abcd-")


def trainers(world: World) -> dict[str, str]:
    """The attempt that each trainer pod belongs to."""
    return {
        short(name): pod["metadata"]["labels"]["clotho.dev/attempt"]
        for name, pod in sorted(world.pods.items())
        if short(name).startswith("trainer")
    }


def deleted(world: World) -> dict[str, int | None]:
    """One pass: the pods that it asks to end, with their grace."""
    return {
        short(action.key.name): action.grace_seconds
        for action in world.reconcile().actions
        if isinstance(action, Delete)
    }


def replaced(world: World) -> None:
    """Let the next attempt start."""
    for _ in range(3):
        world.settle()
        world.advance(60)
        world.terminate("trainer")
    world.settle()
    world.start_all()
    world.settle()


def test_all_pods_start_together_and_the_trainer_is_ready_once_all_are() -> None:
    world = World(minimal_spec(trainer={"replicas": 3}))
    created = [
        short(action.key.name)
        for action in world.reconcile().actions
        if isinstance(action, Create) and action.key.kind == "Pod"
    ]
    assert [name for name in created if name in TRAINERS] == TRAINERS
    world.settle()
    for name in list(world.pods):
        world.start_pod(name, ready=not name.endswith("trainer-2"))
    world.settle()
    assert world.phase == "Starting"
    ready = world.now_status.condition("TrainerReady")
    assert ready
    assert (ready.status, ready.message) == ("False", "2 of 3 pods are ready")
    assert (trainer(world).ready, trainer(world).ranks) == (2, "2/3")
    assert trainer(world).message == "trainer-2 on node node-1: starting."
    assert world.now_status.message == "Waiting for the trainer (2 of 3) to become ready."
    world.start_all()
    world.settle()
    assert (world.phase, trainer(world).ranks, trainer(world).message) == ("Running", "3/3", "")


def starting_gang(missing: tuple[int, ...], **trainer: int) -> World:
    """All pods run, none is ready, and the first reports the ranks that have not joined."""
    world = World(minimal_spec(trainer={"replicas": 3, **trainer}))
    world.settle()
    for name in list(world.pods):
        world.start_pod(name, ready="trainer" not in name)
    world.make_progress(0, "loading", missing_ranks=missing)
    world.settle()
    return world


@pytest.mark.parametrize(
    ("gpus", "missing", "detail"),
    [
        (1, (2,), "trainer-2 on node node-1: rank 2 has not joined"),
        (1, (1, 2), "trainer-1 on node node-1: rank 1 has not joined; 1 more rank missing"),
        (8, tuple(range(16, 24)), "trainer-2 on node node-1: ranks 16 to 23 have not joined"),
    ],
)
def test_a_rank_that_does_not_join_is_named_with_its_node(gpus: int, missing: tuple[int, ...], detail: str) -> None:
    world = starting_gang(missing, gpus=gpus)
    assert world.now_status.message == f"Waiting for the trainer (0 of 3) to become ready; {detail}."
    assert trainer(world).message == f"{detail}."


def test_a_rank_whose_pod_does_not_run_is_not_blamed_for_it() -> None:
    world = starting_gang((2,))
    world.pods[world.named("trainer", 2)]["status"]["phase"] = "Pending"
    world.settle()
    assert "joined" not in world.now_status.message


@pytest.mark.parametrize("index", [0, 1, 2])
def test_any_pod_that_fails_ends_the_attempt_as_one_counted_restart(index: int) -> None:
    world = gang_world()
    world.end_pod(world.named("trainer", index), 137, container_reason="OOMKilled")
    counting = world.reconcile()
    assert counting.actions == (), "first the record"
    assert (trainer(world).restarts, trainer(world).failures) == (1, 1)
    assert f"The trainer (pod {index}) ran out of memory" in world.now_status.message
    world.advance(6)
    survivors = {name: 10 for each, name in enumerate(TRAINERS) if each != index}
    assert deleted(world) == survivors, "those that still run end soon, with a short grace"
    world.terminate()
    world.settle()
    assert trainers(world) == {TRAINERS[index]: "1"}, "kept for its logs until its time comes"
    replaced(world)
    assert trainers(world) == dict.fromkeys(TRAINERS, "2")
    assert (world.phase, world.now_status.restarts, world.now_status.attempt) == ("Running", 1, 2)
    assert world.events.count(RESTARTING) == 1


def test_no_pod_of_the_next_attempt_exists_before_the_last_old_one_is_gone() -> None:
    world = gang_world()
    world.end_pod(world.named("trainer"), 1)
    world.settle()
    world.advance(60)
    world.settle()
    world.advance(60)
    world.settle()
    assert trainers(world) == {"trainer-1": "1", "trainer-2": "1"}, "they are terminating"
    del world.pods[world.named("trainer")]
    world.settle()
    assert trainers(world) == {"trainer-2": "1"}
    world.terminate()
    world.settle()
    assert trainers(world) == dict.fromkeys(TRAINERS, "2")


@pytest.mark.parametrize("order", [[2, 0, 1], [0, 1, 2]])
def test_ranks_that_end_because_another_did_are_not_the_cause(order: list[int]) -> None:
    world = gang_world(restarts={"limit": 1})
    for index in order:
        if index == 2:
            world.end_pod(world.named("trainer", 2), 1, reason="NonFiniteLoss", message="loss is nan")
        else:
            world.end_pod(world.named("trainer", index), 1, reason="DependencyUnavailable", message="rank 2 is gone")
        world.settle()
        world.advance(1)
    assert (trainer(world).restarts, trainer(world).failures, trainer(world).dependency_failures) == (1, 1, 0)
    last = trainer(world).last_exit
    assert last
    assert (last.reason, "(pod 2)" in last.message) == ("NonFiniteLoss", True)
    replaced(world)
    assert (world.phase, world.now_status.restarts) == ("Running", 1)
    world.end_pod(world.named("trainer", 1), 1)
    world.settle()
    assert world.phase == "Failed", "the budget is spent"


def test_a_permanent_failure_that_is_reported_late_fails_the_run() -> None:
    world = gang_world()
    world.end_pod(world.named("trainer"), 1, reason="DependencyUnavailable")
    world.settle()
    world.end_pod(world.named("trainer", 2), 2, reason="InvalidConfig", message="another image")
    world.settle()
    assert world.phase == "Failed"
    assert "The trainer (pod 2) failed (InvalidConfig): another image" in world.now_status.message


def test_an_evicted_pod_replaces_all_at_no_cost() -> None:
    world = gang_world(restarts={"limit": 0})
    world.end_pod(world.named("trainer", 1), 137, pod_reason="Evicted")
    world.settle()
    replaced(world)
    assert (world.phase, trainer(world).restarts, trainer(world).failures) == ("Running", 1, 0)


@pytest.mark.parametrize("lost", [[0], [2], [0, 1, 2]])
def test_deleted_pods_replace_all_counted_once(lost: list[int]) -> None:
    world = gang_world(restarts={"limit": 0})
    for name in [world.named("trainer", index) for index in lost]:
        del world.pods[name]
    world.reconcile()
    replaced(world)
    assert trainers(world) == dict.fromkeys(TRAINERS, "2")
    assert (world.phase, world.now_status.restarts) == ("Running", 1)
    assert world.events.count(RESTARTING) == 1


def test_a_pod_that_is_being_deleted_by_others_ends_before_the_rest_is_replaced() -> None:
    world = gang_world()
    world.delete_pod(world.named("trainer"))
    world.settle()
    assert deleted(world) == {}, "it may be writing a checkpoint, and needs the others for it"
    assert trainer(world).message == "trainer on node node-1: stopping."


def test_a_drained_pod_that_stops_the_others_in_order_costs_nothing() -> None:
    world = gang_world(restarts={"limit": 0})
    world.delete_pod(world.named("trainer", 1))
    for index in (0, 2):
        world.end_pod(world.named("trainer", index), 0, reason="Stopped", step=41)
    world.settle()
    world.terminate()
    replaced(world)
    assert trainers(world) == dict.fromkeys(TRAINERS, "2")
    assert (world.phase, trainer(world).restarts, trainer(world).failures) == ("Running", 1, 0)


@pytest.mark.parametrize(("ask", "end"), [("stop", "Stopped"), ("suspend", "Suspended")])
def test_followers_stay_until_the_first_pod_has_written_the_last_checkpoint(ask: str, end: str) -> None:
    world = gang_world()
    world.change_spec(**{ask: True})
    expected: tuple[dict[str, int | None], ...] = (
        {"env-letters-0": None, "env-letters-1": None},
        {"trainer": None},
        {"trainer-1": 10, "trainer-2": 10},
        {"api-server": None},
    )
    for stage in expected:
        assert deleted(world) == stage
        assert deleted(world) == {}, "waits until they are gone"
        world.terminate()
    world.settle()
    assert (world.phase, world.now_status.restarts) == (end, 0)
    if ask == "suspend":
        world.change_spec(suspend=False)
        world.settle()
        assert trainers(world) == dict.fromkeys(TRAINERS, "2")
        assert world.now_status.restarts == 0


def test_the_run_is_complete_once_the_first_pod_is() -> None:
    world = gang_world()
    world.make_progress(99)
    for index in (1, 2):
        world.end_pod(world.named("trainer", index), 0, reason="Finished", step=100)
    world.settle()
    assert (world.phase, world.now_status.restarts) == ("Running", 0)
    report = Progress(state="finished", step=100, total_steps=100)
    world.end_pod(world.named("trainer"), 0, reason="Finished", step=100, progress=report)
    world.settle()
    assert world.phase == "Completed"


def test_only_the_first_pods_progress_counts() -> None:
    world = gang_world()
    report = Progress(state="finished", step=100, total_steps=100)
    world.end_pod(world.named("trainer", 1), 0, reason="Finished", step=100, progress=report)
    world.settle()
    assert world.phase == "Running"
    del world.pods[world.named("trainer")]
    world.settle()
    assert world.phase == "Starting"
    assert world.now_status.progress is None


def half_placed(placed: int) -> World:
    world = World(minimal_spec(trainer={"replicas": 3, "gpus": 8}))
    world.settle()
    for name in [name for name in world.pods if not short(name).startswith("trainer")]:
        world.start_pod(name)
    place(world, placed)
    return world


def place(world: World, placed: int) -> None:
    for index in range(3):
        name = world.named("trainer", index)
        if index < placed:
            world.start_pod(name, ready=False)
        else:
            words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
            condition = {"type": "PodScheduled", "status": "False", "message": words}
            world.pods[name]["status"] |= {"conditions": [condition]}
    world.settle()


def test_a_half_placed_gang_gives_its_nodes_back_and_tries_again_ever_more_slowly() -> None:
    world = half_placed(placed=2)
    assert trainer(world).ranks == "0/24"
    assert trainer(world).message == (
        "trainer-2: Waiting for a node with 8 nvidia.com/gpu: "
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu; 2 more not ready."
    )
    assert "Waiting for a node with 8 nvidia.com/gpu: 0/3 nodes are available" in world.now_status.message
    waits = []
    for attempt in range(1, 4):
        woken = world.plan().wake_at
        assert woken
        assert timedelta(seconds=539) <= woken - world.now <= timedelta(seconds=661)
        world.now = woken
        world.reconcile()
        gang = trainer(world).gang
        assert gang
        assert (gang.retired_attempt, gang.releases) == (attempt, attempt)
        waits.append((gang.retry_at - world.now).total_seconds() if gang.retry_at else 0)
        world.advance(5)
        world.reconcile()
        world.terminate()
        world.settle()
        assert trainers(world) == {}
        message = world.now_status.message
        assert message.startswith("Only 2 of 3 pods of the trainer got a node. Waiting for a node with 8 nvidia")
        assert "The next attempt starts at" in message
        world.advance(waits[-1])
        world.settle()
        assert trainers(world) == dict.fromkeys(TRAINERS, str(attempt + 1))
        place(world, 2)
    assert [round(wait / 30) for wait in waits] == [1, 2, 4]
    assert (world.now_status.restarts, world.events.count("HalfPlaced")) == (0, 3)
    world.start_all()
    world.settle()
    assert world.phase == "Running"
    gang = trainer(world).gang
    assert gang
    assert gang.releases == 0, "the next time starts from the shortest wait"


@pytest.mark.parametrize("placed", [0, 3])
def test_a_gang_without_any_node_or_with_all_is_left_alone(placed: int) -> None:
    world = half_placed(placed)
    world.advance(3000)
    world.settle()
    assert trainers(world) == dict.fromkeys(TRAINERS, "1")
    assert trainer(world).gang is None


def test_a_stalled_gang_is_restarted_as_one() -> None:
    world = gang_world(stall={"afterSeconds": 600, "action": "Restart"})
    world.start_pod(world.named("trainer", 1), ready=False)
    world.settle()
    world.advance(601)
    world.reconcile()
    assert "the trainer is not ready (trainer-1 on node node-1: starting)" in world.now_status.message
    replaced(world)
    assert (world.phase, world.now_status.restarts, trainer(world).failures) == ("Running", 1, 1)


@pytest.mark.parametrize("writes", range(6))
def test_an_operator_killed_after_any_write_of_a_replacement_counts_it_once(writes: int) -> None:
    world = gang_world()
    world.end_pod(world.named("trainer", 1), 1)
    for _ in range(3):
        world.carry_out(world.plan(), writes=writes)
        world.reconcile()
        world.advance(30)
    replaced(world)
    assert (world.phase, world.now_status.restarts) == ("Running", 1)
    assert len(set(trainers(world).values())) == 1
