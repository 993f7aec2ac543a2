"""The order of the queue: no duplicates, nothing lost, changed runs first, failures with growing delays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clotho.manager.queue import Backoff, Queue, Urgency


def queue() -> Queue[str]:
    return Queue(Backoff(first=1.0, limit=60.0, jitter=lambda: 1.0))


def drain(work: Queue[str], now: float) -> list[str]:
    order = []
    while (key := work.pop(now)) is not None:
        order.append(key)
    return order


def test_a_key_added_many_times_is_worked_on_once() -> None:
    work = queue()
    for _ in range(3):
        work.add("a", 0.0)
    assert (work.depth, drain(work, 0.0)) == (1, ["a"])


def test_keys_are_worked_on_in_the_order_of_arrival() -> None:
    work = queue()
    for now, key in enumerate("abc"):
        work.add(key, float(now))
    assert drain(work, 3.0) == ["a", "b", "c"]


def test_a_run_that_changed_overtakes_new_ones_but_not_for_ever() -> None:
    work = queue()
    work.add("new", 0.0, Urgency.NEW)
    work.add("refreshed", 0.0, Urgency.REFRESH)
    work.add("nearly up", 299.0)
    work.add("nearly up, later", 301.0)
    assert drain(work, 302.0) == ["nearly up", "new", "nearly up, later", "refreshed"]


def test_a_change_raises_the_urgency_of_a_waiting_key() -> None:
    work = queue()
    work.add("a", 0.0, Urgency.NEW)
    work.add("b", 1.0, Urgency.NEW)
    work.add("b", 2.0)
    assert drain(work, 2.0) == ["b", "a"]


def test_a_key_is_never_worked_on_twice_at_once_and_no_change_is_lost() -> None:
    work = queue()
    work.add("a", 0.0)
    assert work.pop(0.0) == "a"
    work.add("a", 1.0)
    assert work.pop(1.0) is None
    work.done("a")
    assert work.pop(1.0) == "a"


def test_a_wake_up_is_delivered_when_due_and_can_be_replaced() -> None:
    work = queue()
    work.add("a", 0.0)
    work.pop(0.0)
    work.done("a", wake_at=10.0)
    assert (work.next_wake(), work.pop(9.9)) == (10.0, None)
    work.wake("a", 5.0)
    assert (work.next_wake(), work.pop(5.0)) == (5.0, "a")
    work.done("a")
    assert (work.next_wake(), work.pop(100.0)) == (None, None)


def test_a_wake_up_that_is_not_urgent_comes_after_new_runs_that_were_there_before() -> None:
    work = queue()
    work.add("started", 0.0)
    work.pop(0.0)
    work.done("started", wake_at=3.0, urgency=Urgency.NEW)
    work.add("new", 2.0, Urgency.NEW)
    work.add("changed", 4.0)
    assert drain(work, 4.0) == ["changed", "new", "started"]


def test_failures_back_off_even_when_the_object_changes() -> None:
    work = queue()
    work.add("a", 0.0)
    work.pop(0.0)
    assert work.failed("a", 0.0) == 1.0
    work.add("a", 0.5)
    assert work.pop(0.9) is None
    assert work.pop(1.0) == "a"
    assert work.failed("a", 1.0) == 2.0
    assert work.pop(3.0) == "a"
    work.done("a")
    work.add("a", 3.0)
    assert work.pop(3.0) == "a", "success ends the hold"
    assert work.failed("a", 3.0) == 1.0, "and the count of failures"


def test_the_servers_retry_after_is_honoured() -> None:
    work = queue()
    work.add("a", 0.0)
    work.pop(0.0)
    assert work.failed("a", 0.0, retry_after=30.0) == 30.0
    assert (work.pop(29.9), work.pop(30.0)) == (None, "a")


@pytest.mark.parametrize(("failures", "expected"), [(0, 1.0), (3, 8.0), (6, 60.0), (1000, 60.0)])
def test_backoff_doubles_up_to_its_limit(failures: int, expected: float) -> None:
    assert Backoff(first=1.0, limit=60.0, jitter=lambda: 1.0).delay(failures) == expected
    assert Backoff(first=1.0, limit=60.0, jitter=lambda: 0.0).delay(failures) == expected / 2


def test_age_is_that_of_the_oldest_waiting_key() -> None:
    work = queue()
    assert work.oldest_age(5.0) == 0.0
    work.add("a", 1.0)
    work.add("b", 4.0)
    work.add("a", 4.5)
    assert work.oldest_age(5.0) == 4.0


def test_a_forgotten_key_leaves_nothing_behind() -> None:
    work = queue()
    work.add("a", 0.0)
    work.wake("a", 1.0)
    work.forget("a")
    assert (work.depth, work.pop(2.0), work.next_wake()) == (0, None, None)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "pop", "done", "fail", "wake"]), st.sampled_from("abc"), st.sampled_from(Urgency)
    ),
    max_size=60,
)


@given(steps)
def test_every_key_that_was_added_is_worked_on_after_its_last_change(history: list[tuple[str, str, Urgency]]) -> None:
    work, owed, running, now = queue(), set[str](), set[str](), 0.0
    for what, key, urgency in history:
        now += 1.0
        if what == "add":
            work.add(key, now, urgency)
            owed.add(key)
        elif what == "wake":
            work.wake(key, now + 1.0, urgency)
        elif what == "pop" and (popped := work.pop(now)) is not None:
            assert popped not in running
            running.add(popped)
            owed.discard(popped)
        elif what in {"done", "fail"} and key in running:
            running.discard(key)
            if what == "done":
                work.done(key)
            else:
                work.failed(key, now)
                owed.add(key)
    for key in running:
        work.done(key)
    assert owed <= set(drain(work, now + 10_000.0))
