"""The dispatcher: bounded, stopped at once when it may not work, and never twice on one key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from clotho.manager.agenda import Agenda, Backoff
from clotho.manager.dispatch import Dispatcher


class Work:
    """Passes that last until the test lets them go."""

    def __init__(self) -> None:
        self.agenda: Agenda[str] = Agenda(Backoff(first=0.001))
        self.started: list[str] = []
        self.stirred = asyncio.Event()
        self.gate = asyncio.Event()
        self.cancelled: list[str] = []
        self.faults: list[Exception] = []

    async def __call__(self, key: str) -> None:
        self.started.append(key)
        self.stirred.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(key)
            raise
        if self.faults:
            raise self.faults.pop()
        self.agenda.done(key)

    async def until_started(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.started) < count:
                self.stirred.clear()
                await self.stirred.wait()


@asynccontextmanager
async def dispatching(work: Work, concurrency: int = 2) -> AsyncIterator[Dispatcher[str]]:
    dispatcher = Dispatcher(work.agenda, work, concurrency)
    task = asyncio.create_task(dispatcher.run())
    yield dispatcher
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_no_more_at_once_than_allowed() -> None:
    work = Work()
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        for key in "abc":
            dispatcher.add(key)
        await work.until_started(2)
        assert work.started == ["a", "b"]
        work.gate.set()
        await work.until_started(3)


async def test_nothing_before_it_is_allowed_and_nothing_after_it_is_forbidden() -> None:
    work = Work()
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
async def test_what_was_cancelled_is_done_when_work_is_allowed_again(has_begun: bool) -> None:
    work = Work()
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await asyncio.sleep(0)
        assert dispatcher.agenda.running == 1
        if has_begun:
            await work.until_started(1)
        dispatcher.allow(False)
        await dispatcher.drain(10)
        assert len(work.started) == has_begun
        dispatcher.allow(True)
        await work.until_started(1 + has_begun)


async def test_a_failure_nobody_expected_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    work.gate.set()
    work.faults = [TypeError("can't subtract")]
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(2)
    assert "unexpected failure, trying again in 0.0 s: can't subtract" in caplog.text


async def test_a_change_during_a_pass_brings_the_key_back() -> None:
    work = Work()
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(1)
        dispatcher.add("a")
        work.gate.set()
        await work.until_started(2)
        assert work.started == ["a", "a"]


async def test_draining_lets_passes_finish() -> None:
    work = Work()
    async with dispatching(work) as dispatcher:
        dispatcher.allow(True)
        dispatcher.add("a")
        await work.until_started(1)
        work.gate.set()
        await dispatcher.drain(10)
        assert work.cancelled == []
