"""How many pods an environment with autoscaling gets, step after step."""

import math
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clotho.api.status import AutoscalingStatus
from clotho.plan.model import Probe, QueueStatus
from clotho.plan.run.autoscaling import Signals, decide
from unit.plan.run.world import START, World, minimal_spec

WAITING = {"waiting_share": 0.5, "occupancy": 0.1}
BUSY = {"waiting_share": 0.1, "occupancy": 0.1}
FULL_ENGINE = {"waiting_share": 0.5, "occupancy": 0.9}
NO_LIMIT = {"waiting_share": 0.5}
FULL_QUEUE = {"waiting_share": 0.0, "has_full_queue": True}
NOT_READY = {**WAITING, "is_ready": False}


def targets(signals: list[dict[str, Any]], least: int = 2, most: int = 16, seconds: int = 60) -> list[int]:
    """The number of pods after each observed step."""
    state, found = AutoscalingStatus(name="letters", target=least), []
    for step, signal in enumerate(signals, start=1):
        state = decide(state, (least, most), Signals(step=step, **signal), START + timedelta(seconds=step * seconds))
        found.append(state.target)
    return found


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ([WAITING] * 3, [2, 2, 4]),
        ([WAITING] * 9, [2, 2, 4, 4, 4, 8, 8, 8, 16]),
        ([WAITING] * 13, [2, 2, 4, 4, 4, 8, 8, 8, 16, 16, 16, 16, 16]),
        ([WAITING, WAITING, BUSY] * 3, [2] * 9),
        ([FULL_ENGINE] * 5, [2] * 5),
        ([NO_LIMIT] * 3, [2, 2, 4]),
        ([NOT_READY] * 5, [2] * 5),
        ([FULL_QUEUE] * 9, [2] * 9),
        ([WAITING] * 9 + [FULL_QUEUE] * 12, [2, 2, 4, 4, 4, 8, 8, 8, *[16] * 6, *[14] * 6, 13]),
        ([WAITING] * 3 + [FULL_QUEUE] * 18, [2, 2, *[4] * 6, *[3] * 6, *[2] * 7]),
        ([WAITING] * 3 + [FULL_QUEUE] * 6 + [WAITING] * 3 + [FULL_QUEUE] * 9, [2, 2, *[4] * 6, *[3] * 3, *[4] * 10]),
    ],
)
def test_number_of_pods(signals: list[dict[str, Any]], expected: list[int]) -> None:
    assert targets(signals) == expected


def test_changes_are_a_minute_apart_however_short_the_steps_are() -> None:
    assert targets([WAITING] * 40, seconds=2).index(8) - targets([WAITING] * 40, seconds=2).index(4) == 30


def test_one_decision_for_each_step() -> None:
    state, seen = AutoscalingStatus(name="letters", target=1), Signals(step=1, waiting_share=0.9)
    for second in range(100):
        state = decide(state, (1, 8), seen, START + timedelta(seconds=second))
    assert (state.target, state.waiting_steps) == (1, 1)


def test_steps_that_are_made_again_after_a_restart_count_anew() -> None:
    before = AutoscalingStatus(name="letters", target=1, step=9, waiting_steps=2)
    state = decide(before, (1, 8), Signals(step=5, waiting_share=0.9), START)
    assert (state.target, state.step, state.waiting_steps) == (1, 5, 0)


@pytest.mark.parametrize(
    ("signal", "most", "reason", "message"),
    [
        (
            WAITING,
            8,
            "Raised",
            "Raised from 2 to 4: the trainer waited 50% of the step for data while the inference engine was 10% full.",
        ),
        (
            FULL_ENGINE,
            8,
            "EngineFull",
            "Not raised: the trainer waited 50% of the step for data, but the inference engine was 90% full; add GPUs.",
        ),
        (
            WAITING,
            2,
            "AtMaximum",
            "Not raised: the trainer waited 50% of the step for data, but autoscaling.max is 2.",
        ),
    ],
)
def test_reasons_are_sentences(signal: dict[str, float], most: int, reason: str, message: str) -> None:
    state = decide(
        AutoscalingStatus(name="letters", target=2, waiting_steps=2), (2, most), Signals(step=1, **signal), START
    )
    assert (state.reason, state.message) == (reason, message)


LIMITS = st.tuples(st.integers(1, 20), st.integers(0, 200)).map(lambda pair: (pair[0], pair[0] + pair[1]))
SIGNALS = st.builds(
    dict,
    waiting_share=st.floats(0, 1),
    occupancy=st.none() | st.floats(0, 1),
    has_full_queue=st.booleans(),
    is_ready=st.booleans(),
)


@given(LIMITS, st.lists(SIGNALS, max_size=40), st.integers(1, 900))
def test_bounded_and_never_more_than_doubled(
    limits: tuple[int, int], signals: list[dict[str, Any]], seconds: int
) -> None:
    found = [limits[0], *targets(signals, *limits, seconds=seconds)]
    assert all(limits[0] <= each <= limits[1] for each in found)
    assert all(after <= 2 * before for before, after in pairwise(found))
    assert all(after >= before - max(1, before // 8) for before, after in pairwise(found))


@given(LIMITS, SIGNALS, st.integers(1, 900))
def test_a_constant_signal_moves_one_way_and_then_rests(
    limits: tuple[int, int], signal: dict[str, Any], seconds: int
) -> None:
    found = targets([signal] * 60, *limits, seconds=seconds)
    assert found == sorted(found)


@given(SIGNALS, st.floats(0, 1), st.integers(1, 900))
def test_more_waiting_never_means_fewer_pods(signal: dict[str, Any], more: float, seconds: int) -> None:
    worse = {**signal, "waiting_share": max(signal["waiting_share"], more)}
    assert targets([worse] * 30, seconds=seconds) >= targets([signal] * 30, seconds=seconds)


@given(st.floats(0.1, 60), st.integers(1, 8))
def test_comes_to_rest_where_pods_and_trainer_are_in_balance(needed: float, least: int) -> None:
    """Each pod fills the 1/`needed` part of what the trainer consumes; an hour of steps, then two more."""
    state, most, found = AutoscalingStatus(name="letters", target=least), 64, []
    for step in range(1, 541):
        waiting = max(0.0, 1 - state.target / needed)
        seen = Signals(step=step, waiting_share=waiting, occupancy=0.1, has_full_queue=state.target > needed)
        state = decide(state, (least, most), seen, START + timedelta(seconds=20 * step))
        found.append(state.target)
    later = found[360:]
    assert max(later) - min(later) <= max(1, max(later) // 8)
    assert sum(before != after for before, after in pairwise(later)) <= 4, "at most one attempt an hour"
    assert max(later) >= min(most, 0.8 * needed - 1), "the trainer waits for 20% at most"
    assert min(later) <= max(least, math.ceil(needed) + max(1, math.ceil(needed) // 8)), "nothing idle is kept"


def elastic_world(**changes: Any) -> World:
    environment = minimal_spec()["environments"][0] | {"replicas": 1, "autoscaling": {"max": 5}} | changes
    world = World(minimal_spec(environments=[environment]))
    world.settle()
    world.start_all()
    world.settle()
    assert world.phase == "Running"
    return world


def observe(world: World, step: int, waiting_share: float, *, batches: int = 0) -> None:
    world.advance(60)
    world.make_progress(step, waiting_share=waiting_share, occupancy=0.1)
    api_server = world.pods[world.named("api-server")]["metadata"]["uid"]
    queue = Probe(pod_uid=api_server, taken_at=world.now, answer=QueueStatus(batches_ready=batches))
    world.probes = msgspec.structs.replace(world.probes, api_server=queue)
    world.settle()
    world.start_all()
    world.terminate()
    world.settle()


def environment_of(world: World) -> Any:
    components = world.now_status.components
    assert components is not None
    return components.environments[0]


def test_pods_follow_the_decisions_and_nothing_counts_as_a_restart() -> None:
    world, counts = elastic_world(), []
    for step in range(1, 10):
        observe(world, step, 0.6)
        counts.append(world.components().count("environment"))
    assert counts == [1, 1, 2, 2, 2, 4, 4, 4, 5]
    assert (environment_of(world).replicas, world.now_status.restarts) == (5, 0)
    assert world.events.count("Scaled") == 3
    for step in range(10, 17):
        observe(world, step, 0.0, batches=3)
    assert (environment_of(world).replicas, world.components().count("environment")) == (5, 5), "4 were too few"
    assert world.now_status.restarts == 0


def test_replicas_by_hand_are_the_new_minimum_at_once() -> None:
    world = elastic_world()
    world.change_spec(environments=[world.spec["environments"][0] | {"replicas": 3}])
    world.settle()
    assert (world.components().count("environment"), world.now_status.autoscaling[0].target) == (3, 3)
    world.change_spec(environments=[world.spec["environments"][0] | {"replicas": 0}])
    world.settle()
    world.terminate()
    assert world.components().count("environment") == 0, "0 switches the environment off"


def test_without_autoscaling_the_number_is_that_of_the_spec_again() -> None:
    world = elastic_world()
    for step in range(1, 4):
        observe(world, step, 0.6)
    plain = {name: value for name, value in world.spec["environments"][0].items() if name != "autoscaling"}
    world.change_spec(environments=[plain])
    world.settle()
    world.terminate()
    world.settle()
    assert world.components().count("environment") == 1
    assert world.now_status.autoscaling == ()


def test_observations_are_written_with_the_progress_and_not_more_often() -> None:
    world = elastic_world()
    observe(world, 1, 0.0)
    before = world.status_writes
    for step in range(2, 20):
        world.advance(1)
        world.make_progress(step, waiting_share=0.0)
        world.reconcile()
    assert world.status_writes == before
