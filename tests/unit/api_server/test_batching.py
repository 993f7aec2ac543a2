"""Which groups make a batch."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clotho_api_server.state.batching import Demand, EnvId, Shortage, Waiting, choose, complete_pack, demand, shortage


def tally(queue: list[Waiting]) -> dict[EnvId, Counter[int]]:
    counts: dict[EnvId, Counter[int]] = defaultdict(Counter)
    for group in queue:
        counts[group.env_id][group.size] += 1
    return dict(counts)


def queue_of(*groups: tuple[EnvId, int]) -> list[Waiting]:
    return [Waiting(id, env_id, size) for id, (env_id, size) in enumerate(groups)]


def batch(queue: list[Waiting], wanted: Demand) -> list[int] | Shortage:
    lacking = shortage(tally(queue), wanted)
    if lacking is not None:
        return lacking
    owed = {env: [group for group in queue if group.env_id == env] for env in wanted.minimums}
    return choose(queue, owed, tally(queue), wanted)


@pytest.mark.parametrize(
    ("sizes", "batch_size", "expected"),
    [
        ([4, 4, 4], 8, [0, 1]),
        ([4], 8, Shortage()),
        ([3, 3, 3], 8, Shortage()),
        ([3, 4, 4], 8, [1, 2]),  # the three could never be completed, so it does not block
        ([4, 6, 6], 12, [1, 2]),
        ([4, 6, 6, 4, 4], 12, [0, 3, 4]),  # the oldest comes first as soon as it can
        ([1, 8, 2, 5], 8, [0, 2, 3]),
        ([2, 2, 4, 8], 8, [0, 1, 2]),
    ],
)
def test_batch_takes_the_oldest_groups_and_is_exactly_full(sizes: list[int], batch_size: int, expected: object) -> None:
    queue = queue_of(*((None, size) for size in sizes))
    assert batch(queue, Demand(batch_size, {})) == expected


def test_a_minimum_is_kept_even_if_others_came_first() -> None:
    queue = queue_of((0, 4), (0, 4), (0, 4), (1, 4))
    assert batch(queue, demand(8, {1: 0.5})) == [0, 3]


def test_a_batch_waits_for_an_environment_below_its_minimum() -> None:
    queue = queue_of((0, 4), (0, 4))
    assert batch(queue, demand(8, {1: 0.5})) == Shortage(frozenset({1}))


def test_minimums_that_promise_too_much_are_scaled_down() -> None:
    assert demand(8, {0: 0.75, 1: 0.75}).minimums == {0: 4, 1: 4}
    assert demand(8, {0: 0.0}).minimums == {}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([3, 5], [0, 1]), ([3, 3, 5], [0, 2]), ([3, 3], []), ([5, 2, 2, 3], [0, 3]), ([8, 1], [0])],
)
def test_parts_make_up_one_group(sizes: list[int], expected: list[int]) -> None:
    assert complete_pack(enumerate(sizes), 8) == expected


@given(
    st.lists(st.tuples(st.sampled_from([None, 0, 1]), st.integers(1, 9)), max_size=14),
    st.integers(1, 16),
    st.dictionaries(st.sampled_from([0, 1]), st.floats(0, 1)),
)
def test_a_batch_is_exact_and_found_whenever_there_is_one(
    groups: list[tuple[EnvId, int]], batch_size: int, allocations: dict[int, float]
) -> None:
    queue = queue_of(*groups)
    wanted = demand(batch_size, allocations)
    chosen = batch(queue, wanted)
    sums = {0}
    for group in queue:
        sums |= {total + group.size for total in sums}
    enough = all(sum(g.size for g in queue if g.env_id == env) >= least for env, least in wanted.minimums.items())
    if isinstance(chosen, Shortage):
        assert not enough or batch_size not in sums
    else:
        assert sum(queue[id].size for id in chosen) == batch_size
        assert len(set(chosen)) == len(chosen)
