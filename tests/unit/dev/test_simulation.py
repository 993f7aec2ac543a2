"""The simulation agrees with what was measured, keeps its books, and behaves as arithmetic demands at its limits."""

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from clotho_dev.simulation.engine import Engine, Group
from clotho_dev.simulation.inputs import Inputs, load
from clotho_dev.simulation.model import Outcome, Schedule, Shape, Simulation, deal
from clotho_trainer.training.batch import Row, packed_tokens
from clotho_trainer.training.local import dealing

INPUTS = load()
SHAPES = [
    Shape(ranks=1),
    Shape(ranks=4, schedule="asynchronous"),
    Shape(ranks=3, replicas=2),
    Shape(ranks=3, replicas=2, schedule="asynchronous", max_staleness=1),
]


def changed(**sections: dict[str, Any]) -> Inputs:
    parts = {name: msgspec.structs.replace(getattr(INPUTS, name), **values) for name, values in sections.items()}
    return msgspec.structs.replace(INPUTS, **parts)


EQUAL = changed(work={"mean_answer": None}, environment={"seconds_per_group": 0.0})
FREE = {
    "http": {"seconds_per_request": 0.0, "seconds_per_sequence": 0.0},
    "api_server": {"seconds_per_token": 0.0},
    "lease": {"seconds_per_token": 0.0},
    "delivery": {"seconds_per_token": 0.0},
    "all_reduce": {"bytes": 0.0},
    "restart": {"seconds": 0.0, "hours_between_failures_of_a_gpu": 1e12},
}


def simulate(inputs: Inputs, steps: int = 4, **shape: Any) -> Outcome:
    return Simulation(inputs, Shape(**shape), steps=steps).run()


def generated_per_second(lengths: list[int], sequences_a_request: int) -> float:
    """By one engine that has all the requests from the start."""
    paces = [INPUTS.decode.seconds_per_token(rows) for rows in range(INPUTS.work.max_rows + 1)]
    engine, now = Engine(INPUTS, paces), 0.0
    for first in range(0, len(lengths), sequences_a_request):
        part = lengths[first : first + sequences_a_request]
        engine.add(Group(first, part, 0, sum(part)), part)
    while (time := engine.next_change()) is not None:
        engine.advance(time)
        engine.finished()
        now = time
    return sum(lengths) / now


def exponential_lengths() -> list[int]:
    chooser = random.Random(2)  # noqa: S311
    return [min(max(int(chooser.expovariate(1 / 179)), 1), 512) for _ in range(640)]


@pytest.mark.parametrize(
    ("lengths", "sequences_a_request", "recorded"),
    [([512] * 128, 16, 15_680), (exponential_lengths(), 1, 9_490), (exponential_lengths(), 1, 10_090)],
    ids=["equal", "ragged", "ragged, another run"],
)
def test_generation_is_within_15_percent_of_the_h200(
    lengths: list[int], sequences_a_request: int, recorded: float
) -> None:
    assert generated_per_second(lengths, sequences_a_request) == pytest.approx(recorded, rel=0.15)


def test_a_step_is_within_15_percent_of_the_h200() -> None:
    found = simulate(EQUAL, ranks=1)
    assert found.seconds_per_step == pytest.approx(9.0, rel=0.15)
    assert found.tokens_per_second == pytest.approx(7_310, rel=0.15)
    assert found.waiting_share * found.seconds_per_step == pytest.approx(4.4, rel=0.15), "generating"


def test_the_shares_of_a_step_and_training_make_up_the_whole() -> None:
    inputs = msgspec.structs.replace(EQUAL, lease=changed(lease={"seconds_per_token": 1e-5}).lease)
    found = simulate(inputs, ranks=16)
    training = (128 + 16 * 512) * inputs.work.groups_per_gpu / inputs.training.tokens_per_second
    shares = found.waiting_share + found.lease_share + found.all_reduce_share
    assert shares + training / found.seconds_per_step == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_seed_gives_the_same_outcome(shape: Shape) -> None:
    first, again = (Simulation(INPUTS, shape, steps=3, seed=7).run() for _ in range(2))
    assert first == again
    assert first != Simulation(INPUTS, shape, steps=3, seed=8).run()


@pytest.mark.parametrize("answers_per_request", [None, 5, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_group_is_trained_once_or_dropped_or_still_under_way(
    shape: Shape, answers_per_request: int | None
) -> None:
    simulation = Simulation(changed(work={"answers_per_request": answers_per_request}), shape, steps=5)
    found = simulation.run()
    ended = simulation.trained + simulation.dropped
    assert len(set(ended)) == len(ended)
    assert found.started_groups == found.trained_groups + found.dropped_groups + found.groups_left
    assert found.trained_groups == 7 * INPUTS.work.groups_per_gpu * shape.gpus


def test_stale_groups_are_dropped_and_never_trained() -> None:
    strict = simulate(INPUTS, ranks=2, schedule="asynchronous", groups_in_flight=64, max_staleness=1)
    assert (strict.most_stale, strict.dropped_groups > 0) == (1, True)
    assert simulate(INPUTS, ranks=2, schedule="asynchronous", groups_in_flight=64).dropped_groups == 0


@pytest.mark.parametrize("schedule", ["synchronous", "asynchronous"])
def test_without_network_and_overheads_scaling_is_linear(schedule: Schedule) -> None:
    free = changed(work={"mean_answer": None}, environment={"seconds_per_group": 0.0}, **FREE)
    one, many = (simulate(free, ranks=ranks, schedule=schedule) for ranks in (1, 16))
    assert many.tokens_per_gpu_second == pytest.approx(one.tokens_per_gpu_second, rel=0.01)


def test_few_environments_are_the_limit_however_many_gpus_there_are() -> None:
    slow = changed(environment={"seconds_per_group": 60.0})
    few, many = (simulate(slow, ranks=ranks, schedule="asynchronous", groups_in_flight=4) for ranks in (4, 16))
    assert many.tokens_per_second == pytest.approx(few.tokens_per_second, rel=0.1)
    assert few.waiting_share > 0.9
    assert few.occupancy < 0.1


def test_a_synchronous_run_trains_what_its_own_policy_wrote() -> None:
    assert simulate(INPUTS, ranks=3, replicas=1).most_stale == 0
    assert simulate(INPUTS, ranks=3, replicas=1, schedule="asynchronous").most_stale > 0


def test_rows_are_delivered_only_to_other_ranks() -> None:
    free = changed(**FREE | {"delivery": {"seconds_per_token": 1e-5}})
    alone, two = (simulate(free, ranks=ranks) for ranks in (1, 2))
    tokens = two.tokens_per_second * two.seconds_per_step + 2 * 8 * 16 * 128  # of a step: answers, and their prompts
    assert alone.lease_share == 0
    assert two.lease_share * two.seconds_per_step == pytest.approx(tokens * 1e-5, rel=0.01)


@pytest.mark.parametrize(("length", "tokens_per_launch", "expected"), [(5, 8, 8), (8, 8, 8), (9, 8, 16), (9, 1, 9)])
def test_a_sequence_ends_with_a_launch(length: int, tokens_per_launch: int, expected: int) -> None:
    inputs = changed(decode={"tokens_per_launch": tokens_per_launch}, prefill={"tokens_per_second": 1e12}, **FREE)
    engine = Engine(inputs, [1.0] * 2)
    engine.add(Group(1, [length], 0, length), [length])
    assert engine.next_change() == pytest.approx(expected)


@pytest.mark.parametrize(("ranks", "prompts_read"), [(1, 1), (4, 4)])
def test_each_rank_that_gets_requests_of_a_group_reads_its_prompt(ranks: int, prompts_read: int) -> None:
    """The rate of generating alone, where one rank reads a prompt in a second and decoding is free."""
    work = {"mean_answer": None, "prompt_tokens": 1, "answers_per_request": 1, "groups_per_gpu": 2}
    inputs = changed(
        work=work,
        decode={"rows": (1,), "tokens_per_second": (1e6,)},
        prefill={"tokens_per_second": 1.0},
        training={"tokens_per_second": 1e12},
        environment={"seconds_per_group": 0.0},
        **FREE,
    )
    found = simulate(inputs, ranks=ranks)
    assert found.seconds_per_step == pytest.approx(2 * prompts_read, rel=0.01)


def trained_row(prompt: int, length: int, seed: int) -> Row:
    flags, numbers = np.ones(length, np.bool_), np.zeros(length, np.float32)
    return Row(np.full(prompt, seed), np.zeros(length, np.int64), flags, flags, numbers, numbers)


@pytest.mark.parametrize(("groups", "ranks"), [(24, 3), (4, 4), (5, 2), (1, 3), (32, 1)])
def test_groups_are_dealt_as_the_trainer_deals_them(groups: int, ranks: int) -> None:
    chooser = random.Random(5)  # noqa: S311
    lengths = [[chooser.randrange(1, 400) for _ in range(16)] for _ in range(groups)]
    rows = [trained_row(128, length, number) for number, each in enumerate(lengths) for length in each]
    expected = [packed_tokens(share) for share in dealing.deal(rows, ranks)]
    assert sorted(deal(lengths, 128, ranks)) == sorted(expected)


def test_the_decode_rate_between_two_measurements_is_between_theirs() -> None:
    pace = INPUTS.decode.seconds_per_token
    assert pace(128) == pytest.approx(128 / 15_633)
    assert pace(64) < pace(100) < pace(128)
    assert pace(1) == pace(0) == pytest.approx(1 / 182)
