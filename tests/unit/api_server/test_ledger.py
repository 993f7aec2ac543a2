"""The life of groups and batches, on a database in memory and files of bytes beside it."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from clotho_api_server.parsing.groups import Group
from clotho_api_server.refusals import ConflictError, FullError, InvalidError, UnknownError
from clotho_api_server.state.ledger import LEASES_REMEMBERED, RECEIPTS_REMEMBERED, Ledger
from clotho_api_server.state.outcomes import Leased
from clotho_api_server.state.schema import FormatError, prepare
from clotho_api_server.state.segments import Place, Segments
from clotho_api_server.state.shares import Limits
from clotho_contract.api_protocol import Register, RegisterEnv

Make = Callable[..., Ledger]


@pytest.fixture
def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    prepare(connection)
    return connection


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    return Segments(tmp_path)


@pytest.fixture
def make(database: sqlite3.Connection, segments: Segments) -> Make:
    def make(**limits: Any) -> Ledger:
        segments.committed({segment for (segment,) in database.execute("SELECT segment FROM groups")})
        return Ledger(database, segments, Limits(**{"max_queue_bytes": 10**9, "max_off_policy_batches": 100, **limits}))

    return make


def trainer(batch_size: int = 4, starting_step: int = 0) -> Register:
    return Register("group", "project", batch_size, 100, "/checkpoints", 5, starting_step, 1000)


def environment(group_size: int = 2, name: str = "env", share: float | None = None) -> RegisterEnv:
    return RegisterEnv(100, name, 1.0, group_size, share)


def group(mark: int, size: int = 2, env_id: int | None = None, version: int | None = None) -> Group:
    return Group(env_id, size, version, json.dumps({"mark": mark}).encode())


def put(ledger: Ledger, *groups: Group, heeds_429: bool = False) -> list[str]:
    return [one.outcome for one in ledger.enqueue(groups, heeds_429=heeds_429).accepted]


def take(ledger: Ledger, now: float = 0.0, *, plain: bool = False) -> Leased:
    leased = ledger.lease(now, plain=plain)
    assert leased is not None
    return leased


@pytest.fixture
def marks(database: sqlite3.Connection, segments: Segments) -> Callable[[Leased], list[int]]:
    def marks(leased: Leased) -> list[int]:
        query = "SELECT segment, offset, bytes FROM groups WHERE batch = ? ORDER BY id"
        rows = database.execute(query, (leased.lease.batch,))
        return [json.loads(segments.read(Place(*row)) or b"")["mark"] for row in rows]

    return marks


def same_after_reload(ledger: Ledger) -> bool:
    """The counts kept in memory are those that the database would give."""
    before = ledger.snapshot()
    ledger.tidy()
    ledger.load()
    return before == ledger.snapshot()


def test_batches_are_first_in_first_out_and_the_step_counts_acknowledged_ones(marks, make: Make) -> None:
    ledger = make()
    ledger.register(trainer())
    put(ledger, *(group(n) for n in range(6)))
    first, second = take(ledger), take(ledger)
    assert (marks(first), marks(second)) == ([0, 1], [2, 3])
    assert ledger.snapshot().step == 0
    assert ledger.acknowledge(first.lease.id, 1).step == 1
    assert ledger.acknowledge(second.lease.id, 2).step == 2
    assert ledger.snapshot().step == 2
    assert same_after_reload(ledger)


def test_groups_before_registration_are_kept(marks, make: Make) -> None:
    ledger = make()
    put(ledger, group(0), group(1))
    with pytest.raises(ConflictError):
        ledger.lease(0)
    ledger.register(trainer())
    assert marks(take(ledger)) == [0, 1]


def test_acknowledging_is_idempotent_for_a_long_time(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=2))
    put(ledger, group(0))
    first = take(ledger).lease.id
    ledger.acknowledge(first, 1)
    assert ledger.acknowledge(first, 1).groups == {}
    ledger.checkpointed(1)
    for step in range(2, LEASES_REMEMBERED):
        put(ledger, group(step))
        ledger.acknowledge(take(ledger).lease.id, step)
    ledger.checkpointed(LEASES_REMEMBERED)
    assert ledger.acknowledge(first, 1).step == 1
    assert ledger.snapshot().step == LEASES_REMEMBERED - 1


def test_a_step_cannot_go_back_without_registering(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(starting_step=7))
    put(ledger, group(0), group(1))
    with pytest.raises(InvalidError, match="behind current_step 7"):
        ledger.acknowledge(take(ledger).lease.id, 6)


def test_an_expired_lease_is_delivered_again_before_newer_ones(marks, make: Make) -> None:
    ledger = make(lease_seconds=10.0)
    ledger.register(trainer())
    put(ledger, *(group(n) for n in range(4)))
    first = take(ledger, now=0)
    ledger.mark_sent(first.lease.id)
    ledger.renew(first.lease.id, now=5)
    assert ledger.expire(now=14) == 0
    assert ledger.expire(now=15) == 1
    assert ledger.snapshot().queue_groups == 4
    with pytest.raises(ConflictError):
        ledger.acknowledge(first.lease.id, 1)
    again = take(ledger, now=15)
    assert marks(again) == [0, 1]
    assert again.lease.id != first.lease.id
    assert same_after_reload(ledger)


def test_a_released_lease_is_delivered_again(marks, make: Make) -> None:
    ledger = make()
    ledger.register(trainer())
    put(ledger, *(group(n) for n in range(4)))
    ledger.release(take(ledger).lease.id)
    assert marks(take(ledger)) == [0, 1]
    with pytest.raises(ConflictError):
        ledger.release("unheard of")


def test_a_plain_batch_is_gone_once_delivered(database, make: Make) -> None:
    ledger = make()
    ledger.register(trainer())
    put(ledger, group(0), group(1))
    leased = take(ledger, plain=True)
    ledger.deliver(leased.lease.id)
    ledger.forget_delivered()
    assert ledger.snapshot().step == 1
    assert database.execute("SELECT count(*) FROM groups").fetchone() == (0,)
    ledger.register(trainer(starting_step=0))
    assert ledger.lease(0) is None
    assert same_after_reload(ledger)


def test_a_plain_batch_whose_client_disconnected_is_returned(marks, make: Make) -> None:
    ledger = make()
    ledger.register(trainer())
    put(ledger, group(0), group(1))
    leased = take(ledger, plain=True)
    ledger.deliver(leased.lease.id)
    ledger.take_back(leased.lease.batch)
    assert ledger.snapshot().step == 0
    assert marks(take(ledger)) == [0, 1]


def test_a_restart_returns_interrupted_responses_and_renews_leases(marks, make: Make) -> None:
    ledger = make(lease_seconds=10.0)
    ledger.register(trainer())
    put(ledger, *(group(n) for n in range(4)))
    take(ledger, now=0, plain=True)
    held = take(ledger, now=0)
    ledger.mark_sent(held.lease.id)
    restarted = make(lease_seconds=10.0)
    restarted.resume(now=100.0)
    assert restarted.expire(now=109.0) == 0
    assert marks(take(restarted, now=109.0)) == [0, 1]
    assert restarted.acknowledge(held.lease.id, 1).step == 1


def test_a_batch_in_doubt_after_a_crash_is_acknowledged_or_leased_again(marks, make: Make) -> None:
    ledger = make()
    ledger.register(trainer())
    put(ledger, *(group(n) for n in range(4)))
    unsent = take(ledger)
    restarted = make()
    restarted.resume(now=0)
    assert restarted.snapshot().returned_batches == 1
    assert restarted.acknowledge(unsent.lease.id, 1).step == 1  # it had arrived after all
    unsent = take(restarted)
    again = make()
    again.resume(now=0)
    assert marks(take(again)) == [2, 3]
    with pytest.raises(ConflictError):
        again.acknowledge(unsent.lease.id, 2)
    assert same_after_reload(again)


def test_a_trainer_that_starts_again_gets_back_what_its_checkpoint_lacks(marks, make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=2))
    put(ledger, *(group(n) for n in range(6)))
    for step in range(1, 5):
        ledger.acknowledge(take(ledger).lease.id, step)
    ledger.checkpointed(2)
    held = take(ledger)
    ledger.register(trainer(batch_size=2, starting_step=2))
    assert ledger.snapshot().step == 2
    assert [marks(take(ledger)) for _ in range(4)] == [[2], [3], [4], [5]]
    with pytest.raises(ConflictError):
        ledger.acknowledge(held.lease.id, 5)
    assert same_after_reload(ledger)


def test_the_step_of_the_checkpoint_itself_is_not_trained_again(marks, make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=2))
    put(ledger, group(0), group(1))
    for step in (1, 2):
        ledger.acknowledge(take(ledger).lease.id, step)
    ledger.register(trainer(batch_size=2, starting_step=1))
    assert marks(take(ledger)) == [1]
    assert ledger.lease(0) is None


def test_an_acknowledgement_from_before_the_rollback_is_refused(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=2))
    put(ledger, group(0))
    old = take(ledger).lease.id
    ledger.acknowledge(old, 1)
    ledger.register(trainer(batch_size=2, starting_step=0))
    with pytest.raises(ConflictError):
        ledger.acknowledge(old, 1)


def test_the_first_registration_sets_the_step(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(starting_step=40))
    assert ledger.snapshot().step == 40


def test_another_batch_size_rebuilds_queued_batches(marks, make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=4))
    put(ledger, *(group(n) for n in range(4)))
    ledger.acknowledge(take(ledger).lease.id, 1)
    take(ledger)
    ledger.register(trainer(batch_size=8, starting_step=0))
    assert marks(take(ledger)) == [0, 1, 2, 3]
    assert same_after_reload(ledger)


def test_group_sizes_that_do_not_divide_the_batch_are_refused_with_the_arithmetic(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=8))
    with pytest.raises(InvalidError, match=r"8 = 2 x 3 \+ 2; group sizes that do: 1, 2, 4, 8"):
        ledger.register_environment(environment(group_size=3))
    with pytest.raises(InvalidError, match=r"tokens: .* 8 = 2 x 3 \+ 2"):
        put(ledger, group(0, size=3))
    ledger.register_environment(environment(group_size=4))
    with pytest.raises(InvalidError, match="of environment env_0"):
        ledger.register(trainer(batch_size=6))
    ledger.set_connected(0, False)
    ledger.register(trainer(batch_size=6))


def test_one_bad_group_keeps_the_whole_list_out(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=4))
    with pytest.raises(InvalidError):
        put(ledger, group(0), group(1, size=3))
    assert ledger.snapshot().queue_groups == 0


def test_environments_are_numbered_and_named(make: Make) -> None:
    ledger = make()
    with pytest.raises(ConflictError):
        ledger.register_environment(environment())
    ledger.register(trainer())
    names = [ledger.register_environment(environment(name=name)).wandb_name for name in ("a", "a", "b")]
    assert names == ["a_0", "a_1", "b_0"]
    with pytest.raises(UnknownError):
        ledger.set_connected(3, True)


def test_partial_groups_are_buffered_until_complete(marks, make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=4))
    ledger.register_environment(environment(group_size=4))
    first = ledger.enqueue([group(0, size=3, env_id=0)], heeds_429=False).receipt
    assert (first.buffered, first.buffer_size) == (1, 3)
    assert ledger.lease(0) is None
    assert same_after_reload(ledger)
    second = ledger.enqueue([group(1, size=1, env_id=0)], heeds_429=False).receipt
    assert (second.buffered, second.buffer_size) == (1, 0)
    assert marks(take(ledger)) == [0, 1]


def test_partial_groups_that_cannot_add_up_are_refused(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=4))
    ledger.register_environment(environment(group_size=4))
    put(ledger, *(group(n, size=3, env_id=0) for n in range(4)))
    with pytest.raises(InvalidError, match="do not add up to 4"):
        put(ledger, group(9, size=3, env_id=0))


def test_a_dead_environments_minimum_does_not_hold_up_batches(marks, make: Make) -> None:
    ledger = make()
    ledger.register(trainer())
    ledger.register_environment(environment(share=0.5))
    ledger.register_environment(environment())
    put(ledger, group(0, env_id=1), group(1, env_id=1))
    assert ledger.lease(0) is None
    ledger.set_connected(0, False)
    assert marks(take(ledger)) == [0, 1]


def test_the_queue_is_bounded_in_batches_for_those_who_understand(make: Make) -> None:
    ledger = make(max_off_policy_batches=2)
    ledger.register(trainer())
    put(ledger, *(group(n) for n in range(4)))
    with pytest.raises(FullError, match="2 batches") as caught:
        put(ledger, group(4), heeds_429=True)
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "5"})
    assert put(ledger, group(4)) == ["received"]  # old clients pace themselves by /status-env


def test_the_queue_is_bounded_in_bytes_for_everyone(make: Make) -> None:
    ledger = make(max_queue_bytes=30)
    ledger.register(trainer())
    put(ledger, group(0))
    put(ledger, group(1), group(2))
    with pytest.raises(FullError) as caught:
        put(ledger, group(3))
    assert caught.value.status == 503


def test_a_tiny_byte_limit_still_allows_one_batch(make: Make) -> None:
    ledger = make(max_queue_bytes=1)
    ledger.register(trainer())
    put(ledger, group(0))
    put(ledger, group(1))
    take(ledger)


def test_a_full_queue_takes_what_the_batch_waits_for(make: Make) -> None:
    ledger = make(max_queue_bytes=30)
    ledger.register(trainer())
    ledger.register_environment(environment(share=0.5))
    ledger.register_environment(environment())
    put(ledger, *(group(n, env_id=1) for n in range(3)))
    with pytest.raises(FullError):
        put(ledger, group(3, env_id=1))
    assert put(ledger, group(4, env_id=0)) == ["received"]
    take(ledger)


def test_old_groups_are_dropped_and_reported(marks, make: Make) -> None:
    ledger = make(max_staleness=2)
    ledger.register(trainer(batch_size=2, starting_step=10))
    assert put(ledger, group(0, version=7)) == ["stale"]
    assert put(ledger, group(1, version=10), group(2, version=8), group(3), group(4, version=9)) == ["received"] * 4
    leased = take(ledger)
    assert list(leased.staleness) == [0]
    trained = ledger.acknowledge(leased.lease.id, 11)
    assert trained.dropped == {None: 1}
    assert [marks(take(ledger)) for _ in range(2)] == [[3], [4]]
    assert same_after_reload(ledger)


def test_trained_groups_without_a_checkpoint_do_not_fill_the_disk(make: Make) -> None:
    ledger = make(max_queue_bytes=30)
    ledger.register(trainer(batch_size=2))
    for step in range(1, 10):
        put(ledger, group(step))
        ledger.acknowledge(take(ledger).lease.id, step)
    assert ledger.snapshot().retained_bytes <= 30
    assert same_after_reload(ledger)


def test_reset_forgets_everything(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(starting_step=3))
    put(ledger, group(0), group(1))
    take(ledger)
    ledger.register_environment(environment())
    ledger.reset()
    assert ledger.snapshot() == make().snapshot()
    assert ledger.snapshot().registration is None
    assert ledger.snapshot().step == 0


def test_groups_resent_with_their_key_are_queued_once_and_answered_alike(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=4))
    ledger.register_environment(environment(group_size=4))
    first = ledger.enqueue([group(0, size=3, env_id=0), group(1)], heeds_429=False, key="a")
    again = ledger.enqueue([group(0, size=3, env_id=0), group(1)], heeds_429=False, key="a")
    assert again.receipt == first.receipt
    assert (first.receipt.groups, first.receipt.buffered, first.receipt.buffer_size) == (2, 1, 3)
    assert (len(first.accepted), len(again.accepted)) == (2, 0)
    assert ledger.snapshot().queue_groups == 1
    ledger.enqueue([group(1)], heeds_429=False, key="b")
    assert ledger.snapshot().queue_groups == 2
    assert same_after_reload(ledger)


def test_a_key_whose_groups_were_refused_may_be_used_again(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(batch_size=4))
    with pytest.raises(InvalidError):
        ledger.enqueue([group(0, size=3)], heeds_429=False, key="a")
    ledger.enqueue([group(0, size=2)], heeds_429=False, key="a")
    assert ledger.snapshot().queue_groups == 1


def test_keys_are_remembered_for_a_bounded_number_of_requests(database, make: Make) -> None:
    ledger = make()
    for number in range(RECEIPTS_REMEMBERED + 5):
        ledger.enqueue([], heeds_429=False, key=str(number))
    assert database.execute("SELECT count(*) FROM receipts").fetchone() == (RECEIPTS_REMEMBERED,)
    ledger.enqueue([group(1)], heeds_429=False, key=str(RECEIPTS_REMEMBERED + 4))
    assert ledger.snapshot().queue_groups == 0
    ledger.enqueue([group(1)], heeds_429=False, key="0")
    assert ledger.snapshot().queue_groups == 1


def test_data_of_another_format_is_refused_with_instructions(database) -> None:
    database.execute("PRAGMA user_version = 1")
    with pytest.raises(FormatError, match=r"has format 1, this server reads 2: .* empty the folder"):
        prepare(database)


def test_a_step_is_never_beyond_the_batches_given_out(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(starting_step=400))  # a new server for a run that is under way
    put(ledger, *(group(n) for n in range(6)))
    first, second = take(ledger).lease.id, take(ledger).lease.id
    with pytest.raises(InvalidError, match="403 is beyond 402: current_step 400 and 2 batches"):
        ledger.acknowledge(first, 403)
    assert ledger.acknowledge(second, 402).step == 402  # it was trained after one whose acknowledgement got lost
    with pytest.raises(InvalidError, match="step: 404 is beyond 403"):
        ledger.acknowledge(first, 404)
    assert ledger.acknowledge(first, 403).step == 403
    assert same_after_reload(ledger)


@pytest.mark.parametrize("starting_step", [10**15, 404, 403])
def test_a_trainer_cannot_register_ahead_of_the_batches_given_out(make: Make, starting_step: int) -> None:
    ledger = make()
    ledger.register(trainer(starting_step=400))
    put(ledger, *(group(n) for n in range(6)))
    ledger.acknowledge(take(ledger).lease.id, 401)
    held = take(ledger)
    before = ledger.snapshot()
    with pytest.raises(InvalidError, match=f"starting_step: {starting_step} is beyond 402"):
        ledger.register(trainer(starting_step=starting_step))
    assert ledger.snapshot() == before
    ledger.register(trainer(starting_step=402))  # the checkpoint holds the step whose acknowledgement got lost
    assert ledger.snapshot().step == 402
    with pytest.raises(ConflictError):
        ledger.renew(held.lease.id, 0)


def test_a_trainer_may_register_with_any_step_until_a_batch_is_given_out(make: Make) -> None:
    ledger = make()
    ledger.register(trainer(starting_step=0))
    ledger.register(trainer(starting_step=7))
    assert ledger.snapshot().step == 7


def test_a_trainer_may_discard_a_state_that_is_older_than_its_own(make: Make) -> None:
    ledger = make()
    ledger.register(trainer())
    put(ledger, *(group(n) for n in range(6)))
    ledger.acknowledge(take(ledger).lease.id, 1)
    take(ledger)
    ledger.register(structs.replace(trainer(starting_step=400), discards_state=True))
    state = ledger.snapshot()
    assert (state.step, state.queue_groups, state.leased_batches, state.retained_bytes) == (400, 0, 0, 0)
    assert same_after_reload(ledger)
