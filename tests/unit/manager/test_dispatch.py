"""The dispatcher: bounded, stopped at once when it may not work, and never twice on one key."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from clotho.cluster.outcomes import TooManyRequests
from clotho.manager.dispatch import Dispatcher, Result, log_failure
from clotho.manager.queue import Backoff, Queue


class Reconciles:
    """Reconciles that last until the test lets them go."""

    def __init__(self) -> None:
        self.queue: Queue[str] = Queue(Backoff(first=0.001))
        self.result = Result()
        self.started: list[str] = []
        self.stirred = asyncio.Event()
        self.gate = asyncio.Event()
        self.cancelled: list[str] = []
        self.faults: list[Exception] = []

    async def __call__(self, key: str) -> Result:
        self.started.append(key)
        self.stirred.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(key)
            raise
        if self.faults:
            raise self.faults.pop()
        return self.result

    async def until_started(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.started) < count:
                self.stirred.clear()
                await self.stirred.wait()


@asynccontextmanager
async def dispatching(
    work: Reconciles,
    concurrency: int = 2,
    on_failure: Callable[[str, Exception, float], None] = log_failure,
    slack: float = 0.0,
) -> AsyncIterator[Dispatcher[str]]:
    dispatcher = Dispatcher(work.queue, work, concurrency, on_failure, slack=slack)
    task = asyncio.create_task(dispatcher.run())
    yield dispatcher
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_reconciles_at_once_are_limited() -> None:
    work = Reconciles()
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        for key in "abc":
            dispatcher.add(key)
        await work.until_started(2)
        assert work.started == ["a", "b"]
        work.gate.set()
        await work.until_started(3)


async def test_wake_ups_that_are_nearly_due_are_served_together() -> None:
    work = Reconciles()
    async with dispatching(work, slack=0.3) as dispatcher:
        now = time.monotonic()
        dispatcher.queue.wake("a", now + 0.01)
        dispatcher.queue.wake("b", now + 0.1)
        dispatcher.allow(True)
        await work.until_started(1)
        assert work.started == ["a", "b"]


class CountingQueue(Queue[str]):
    asked = 0

    def next_wake(self) -> float | None:
        self.asked += 1
        return super().next_wake()


async def test_a_key_that_is_due_rests_until_a_slot_is_free() -> None:
    work = Reconciles()
    work.queue = queue = CountingQueue()
    async with dispatching(work, concurrency=1) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(1)
        queue.wake("b", time.monotonic())
        dispatcher.add("c")
        before = queue.asked
        for _ in range(100):
            await asyncio.sleep(0)
        assert queue.asked - before <= 1, "the dispatcher does not spin"
        work.gate.set()
        await work.until_started(3)
        assert sorted(work.started) == ["a", "b", "c"]


async def test_reconciles_run_only_while_allowed() -> None:
    work = Reconciles()
    async with dispatching(work) as dispatcher:
        dispatcher.add("a")
        await asyncio.sleep(0)
        assert work.started == []
        dispatcher.allow(True)
        await work.until_started(1)
        dispatcher.allow(False)
        await dispatcher.drain(10)
        assert work.cancelled == ["a"]


@pytest.mark.parametrize("has_begun", [True, False])
async def test_cancelled_reconciles_run_again_once_allowed(has_begun: bool) -> None:
    work = Reconciles()
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await asyncio.sleep(0)
        assert dispatcher.queue.running == 1
        if has_begun:
            await work.until_started(1)
        dispatcher.allow(False)
        await dispatcher.drain(10)
        assert len(work.started) == has_begun
        dispatcher.allow(True)
        await work.until_started(1 + has_begun)


async def test_an_unexpected_failure_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    work = Reconciles()
    work.gate.set()
    work.faults = [TypeError("can't subtract")]
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(2)
    assert "unexpected failure, retrying in 0.0 s: can't subtract" in caplog.text


async def test_a_change_during_a_reconcile_requeues_the_key() -> None:
    work = Reconciles()
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(1)
        dispatcher.add("a")
        work.gate.set()
        await work.until_started(2)
        assert work.started == ["a", "a"]


async def test_draining_lets_reconciles_finish() -> None:
    work = Reconciles()
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(1)
        work.gate.set()
        await dispatcher.drain(10)
        assert work.cancelled == []


async def test_result_with_requeue_requeues_the_key_at_once() -> None:
    work = Reconciles()
    work.gate.set()
    work.result = Result(requeue=True)
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(3)


async def test_result_decides_when_the_key_is_due_again() -> None:
    work = Reconciles()
    work.gate.set()
    work.result = Result(requeue_after=1000)
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(1)
        await dispatcher.drain(10)
        due = work.queue.next_wake()
        assert due is not None
        assert 900 < due - time.monotonic() <= 1000


async def test_nothing_of_a_key_that_is_gone_is_kept() -> None:
    work = Reconciles()
    work.gate.set()
    work.faults = [TypeError()]
    work.result = Result(is_gone=True)
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(2)
        await dispatcher.drain(10)
        assert (work.queue.depth, work.queue.running, work.queue.next_wake()) == (0, 0, None)
        assert work.queue.failed("a", 0.0) < 0.002, "the count of failures starts anew"


async def test_failure_that_names_a_time_is_retried_no_earlier() -> None:
    delays: list[float] = []
    work = Reconciles()
    work.gate.set()
    work.faults = [TooManyRequests("get", "busy", retry_after=77.0)]
    async with dispatching(work, on_failure=lambda _, __, delay: delays.append(delay)) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(1)
        await dispatcher.drain(10)
        assert delays == [77.0]
