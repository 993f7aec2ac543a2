"""Reconciles what is in a queue with bounded concurrency, while allowed to."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Generic, TypeVar

from msgspec import Struct

from clotho.cluster.outcomes import Transient
from clotho.manager.queue import Queue, Urgency

K = TypeVar("K", bound=Hashable)
log = logging.getLogger(__name__)


class Result(Struct, frozen=True, kw_only=True):
    """How a reconcile that succeeded ended; by default only a change brings the key back."""

    requeue: bool = False  # at once
    requeue_after: float | None = None  # seconds
    urgency: Urgency = Urgency.CHANGED  # once they have passed
    is_gone: bool = False  # there is nothing of this key any more


def log_failure(key: object, error: Exception, delay: float) -> None:
    log.error("unexpected failure, retrying in %.1f s: %s", delay, error, exc_info=error, extra={"run": str(key)})


class Dispatcher(Generic[K]):
    """The only one that touches the queue, from one task at a time: no locks are needed.

    `reconcile(key)` returns a Result, or raises and is retried with back-off. `on_failure(key, error, delay)`.
    Wake-ups that are due within `slack` seconds are served together.
    """

    def __init__(
        self,
        queue: Queue[K],
        reconcile: Callable[[K], Coroutine[object, object, Result]],
        concurrency: int,
        on_failure: Callable[[K, Exception, float], None] = log_failure,
        *,
        slack: float = 0.0,
    ) -> None:
        self.queue = queue
        self._reconcile, self._slots, self._on_failure, self._slack = reconcile, concurrency, on_failure, slack
        self._tasks: dict[asyncio.Task[Result], float] = {}
        self._woken = asyncio.Event()
        self._allowed = False

    def add(self, key: K, urgency: Urgency = Urgency.CHANGED) -> None:
        self.queue.add(key, time.monotonic(), urgency)
        self._woken.set()

    def allow(self, allowed: bool) -> None:
        """Forbidding cancels what is under way: another replica may reconcile the same keys soon.

        What was cancelled comes first when it is allowed again.
        """
        self._allowed = allowed
        self._woken.set()
        if not allowed:
            for task in self._tasks:
                task.cancel()

    def longest_running(self) -> float:
        """Seconds that the oldest reconcile has been under way; a hung one shows here."""
        return time.monotonic() - min(self._tasks.values(), default=time.monotonic())

    async def run(self) -> None:
        try:
            while True:
                self._start_what_is_due()
                await self._wait()
        finally:
            self.allow(False)

    async def drain(self, seconds: float) -> None:
        """Take no more keys and let what is under way finish."""
        self._allowed = False
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _start_what_is_due(self) -> None:
        while self._allowed and len(self._tasks) < self._slots:
            key = self.queue.pop(time.monotonic())
            if key is None:
                return
            task = asyncio.create_task(self._reconcile(key))
            self._tasks[task] = time.monotonic()
            task.add_done_callback(partial(self._finished, key))

    def _finished(self, key: K, task: asyncio.Task[Result]) -> None:
        """A callback, since a task that is cancelled before its first step never runs any of its own code."""
        del self._tasks[task]
        now = time.monotonic()
        if task.cancelled():
            self.queue.done(key)
            self.queue.add(key, now)
        elif isinstance(error := task.exception(), Exception):
            retry_after = error.retry_after if isinstance(error, Transient) else None
            self._on_failure(key, error, self.queue.failed(key, now, retry_after))
        else:
            self._requeue(key, task.result(), now)
        self._woken.set()

    def _requeue(self, key: K, result: Result, now: float) -> None:
        if result.is_gone:
            self.queue.forget(key)
        self.queue.done(key, None if result.requeue_after is None else now + result.requeue_after, result.urgency)
        if result.requeue:
            self.queue.add(key, now)

    async def _wait(self) -> None:
        """With all slots taken, for one of them: a key that is due would not let the process rest."""
        due = self.queue.next_wake() if self._allowed and len(self._tasks) < self._slots else None
        timer = None
        if due is not None:
            delay = max(0.0, due + self._slack - time.monotonic())
            timer = asyncio.get_running_loop().call_later(delay, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._woken.clear()
