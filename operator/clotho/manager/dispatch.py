"""Works an agenda off with bounded concurrency, while allowed to."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Generic, TypeVar

from clotho.manager.agenda import Agenda, Urgency

K = TypeVar("K", bound=Hashable)
log = logging.getLogger(__name__)


class Dispatcher(Generic[K]):
    """`work(key)` must tell the agenda how it ended. Only one task takes keys, so wake-ups need no locks."""

    def __init__(
        self, agenda: Agenda[K], work: Callable[[K], Coroutine[object, object, None]], concurrency: int
    ) -> None:
        self.agenda = agenda
        self._work, self._slots = work, concurrency
        self._tasks: dict[asyncio.Task[None], float] = {}
        self._stirred = asyncio.Event()
        self._allowed = False

    def add(self, key: K, urgency: Urgency = Urgency.CHANGED) -> None:
        self.agenda.add(key, time.monotonic(), urgency)
        self._stirred.set()

    def allow(self, allowed: bool) -> None:
        """Forbidding cancels what is under way: another replica may work on the same keys soon.

        What was cancelled comes first when work is allowed again.
        """
        self._allowed = allowed
        self._stirred.set()
        if not allowed:
            for task in self._tasks:
                task.cancel()

    def longest_pass(self) -> float:
        """Seconds that the oldest pass has been under way; a hung one shows here."""
        return time.monotonic() - min(self._tasks.values(), default=time.monotonic())

    async def run(self) -> None:
        try:
            while True:
                self._start_what_is_due()
                await self._wait()
        finally:
            self.allow(False)

    async def drain(self, seconds: float) -> None:
        """Take no more keys and let the passes under way finish."""
        self._allowed = False
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _start_what_is_due(self) -> None:
        while self._allowed and len(self._tasks) < self._slots:
            key = self.agenda.pop(time.monotonic())
            if key is None:
                return
            task = asyncio.create_task(self._work(key))
            self._tasks[task] = time.monotonic()
            task.add_done_callback(partial(self._finished, key))

    def _finished(self, key: K, task: asyncio.Task[None]) -> None:
        """Here and not around the work: a task that is cancelled before its first step never gets to run any of it."""
        del self._tasks[task]
        if task.cancelled():
            self.agenda.done(key)
            self.agenda.add(key, time.monotonic())
        elif (error := task.exception()) is not None:
            delay = self.agenda.failed(key, time.monotonic())
            words = "unexpected failure, trying again in %.1f s: %s"
            log.error(words, delay, error, exc_info=error, extra={"run": str(key)})
        self._stirred.set()

    async def _wait(self) -> None:
        due = self.agenda.next_wake() if self._allowed else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                await self._stirred.wait()
        self._stirred.clear()
