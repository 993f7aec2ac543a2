"""The queue as environments see it, and which of them may still send when it is full."""

from typing import Any

import pytest

from clotho_api_server.state.shares import (
    Environment,
    Limits,
    Snapshot,
    environment_status,
    is_needed,
    needs_no_group,
)
from clotho_contract.api_protocol import Register, RegisterEnv

TRAINER = Register("g", "p", 8, 100, "/c", 5, 0, 10)


def environment(id: int, *, connected: bool = True, **changes: Any) -> Environment:
    asked = RegisterEnv(**{"max_token_length": 100, "desired_name": "e", "weight": 1.0, "group_size": 4, **changes})
    return Environment(id, f"e_{id}", asked, connected)


def state(*environments: Environment, **changes: Any) -> Snapshot:
    return Snapshot(registration=TRAINER, environments={env.id: env for env in environments}, **changes)


def test_shares_are_of_the_connected_only() -> None:
    alive, dead = environment(0), environment(1, connected=False, weight=9.0, min_batch_allocation=0.5)
    status = environment_status(state(alive, dead), alive)
    assert status.env_weight == 1.0
    assert status.unallocated_fraction == 1.0


def test_the_only_environment_keeps_full_weight_after_disconnecting() -> None:
    gone = environment(0, connected=False)
    assert environment_status(state(gone), gone).env_weight == 1.0


def test_no_weight_at_all_still_gets_the_least() -> None:
    env = environment(0, weight=0.0)
    assert environment_status(state(env), env).env_weight == 0.01


def test_queue_of_others_counts_beyond_what_is_set_aside_for_them() -> None:
    asking, other = environment(0), environment(1, min_batch_allocation=0.5)
    status = environment_status(state(asking, other, queued={0: {4: 1}, 1: {4: 3}}), asking)
    assert (status.self_queue_size, status.queue_size) == (1, 3)  # 4 own + 12 - 4 set aside = 12 sequences


def test_returned_batches_count_as_queue() -> None:
    env = environment(0)
    assert environment_status(state(env, returned_sequences=8), env).queue_size == 2


@pytest.mark.parametrize(
    ("queued", "welcome"),
    [
        ({0: {4: 2}}, {1}),  # the batch waits for the minimum of 1, so only 1 may send
        ({0: {4: 1}, 1: {4: 1}}, set()),  # a batch is ready: none of them
        ({}, {1}),
    ],
)
def test_a_full_queue_takes_only_what_the_next_batch_waits_for(queued: Any, welcome: set[int]) -> None:
    now = state(environment(0), environment(1, min_batch_allocation=0.5), queued=queued)
    assert {id for id in (0, 1) if is_needed(now, id)} == welcome
    assert needs_no_group(now) == (not welcome)


def test_sizes_that_do_not_add_up_yet_are_never_a_reason_to_refuse() -> None:
    assert is_needed(state(queued={None: {3: 2}}), None)


def test_queue_is_limited_in_batches_and_bytes() -> None:
    limits = Limits(max_queue_bytes=100, max_off_policy_batches=2)
    assert not limits.reached_by(state(queued={0: {4: 3}}))
    assert limits.batches_reached_by(state(queued={0: {4: 4}}))
    assert limits.bytes_reached_by(state(queue_bytes=100))
    assert not limits.batches_reached_by(Snapshot(queued={0: {4: 400}}))
