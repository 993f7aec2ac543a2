"""The reconcile queue: deduplicated, one reconcile at a time for each key, delayed wake-ups, back-off. Pure."""

import heapq
import itertools
import random
from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Urgency(IntEnum):
    """How many seconds a key may be overtaken: under a burst, runs that are nearly up finish before new ones start."""

    CHANGED = 0
    NEW = 300
    REFRESH = 900


_NO_WAKE = (float("inf"), Urgency.CHANGED)


class Backoff:
    """Exponential with full jitter: a thousand failing runs do not come back in the same instant."""

    def __init__(self, first: float = 0.1, limit: float = 60.0, jitter: Callable[[], float] = random.random) -> None:
        self._first, self._limit, self._jitter = first, limit, jitter

    def delay(self, failures: int) -> float:
        ceiling = min(self._limit, self._first * 2.0 ** min(failures, 32))
        return ceiling * (0.5 + 0.5 * self._jitter())


class Queue(Generic[K]):
    """A key is ready or running, never both; a change that comes while it runs makes it ready afterwards."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._order = itertools.count()
        self._ready: list[tuple[float, int, K]] = []
        self._rank: dict[K, float] = {}  # of the valid heap entry; others are leftovers of a better rank
        self._since: dict[K, float] = {}
        self._running: set[K] = set()
        self._again: dict[K, tuple[float, float]] = {}  # changed while running: (rank, since)
        self._wakes: list[tuple[float, int, K]] = []
        self._wake_at: dict[K, tuple[float, Urgency]] = {}
        self._hold_until: dict[K, float] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K, now: float, urgency: Urgency = Urgency.CHANGED) -> None:
        """Reconcile the key as soon as possible; one on hold waits until its hold is over."""
        hold = self._hold_until.get(key, 0.0)
        if hold > now:
            self.wake(key, min(hold, self._wake_at.get(key, _NO_WAKE)[0]))
            return
        rank = now + urgency
        if key in self._running:
            known = self._again.get(key)
            self._again[key] = (min(rank, known[0]), known[1]) if known else (rank, now)
        elif rank < self._rank.get(key, float("inf")):
            self._rank[key] = rank
            self._since.setdefault(key, now)
            heapq.heappush(self._ready, (rank, next(self._order), key))

    def wake(self, key: K, at: float, urgency: Urgency = Urgency.CHANGED) -> None:
        """Reconcile the key at this time, whatever happens until then; the last call counts."""
        self._wake_at[key] = (at, urgency)
        heapq.heappush(self._wakes, (at, next(self._order), key))

    def pop(self, now: float) -> K | None:
        """The next key to reconcile, or None. It stays `running` until `done` or `failed`."""
        self._ring(now)
        while self._ready:
            rank, _, key = heapq.heappop(self._ready)
            if self._rank.get(key) != rank:
                continue
            del self._rank[key], self._since[key]
            self._running.add(key)
            return key
        return None

    def _ring(self, now: float) -> None:
        while self._wakes and self._wakes[0][0] <= now:
            at, _, key = heapq.heappop(self._wakes)
            due, urgency = self._wake_at.get(key, _NO_WAKE)
            if due == at:
                del self._wake_at[key]
                self._hold_until.pop(key, None)
                self.add(key, now, urgency)

    def next_wake(self) -> float | None:
        while self._wakes and self._wake_at.get(self._wakes[0][2], _NO_WAKE)[0] != self._wakes[0][0]:
            heapq.heappop(self._wakes)
        return self._wakes[0][0] if self._wakes else None

    def done(self, key: K, wake_at: float | None = None, urgency: Urgency = Urgency.CHANGED) -> None:
        """The reconcile succeeded; without a wake-up time only a change brings the key back."""
        self._failures.pop(key, None)
        self._hold_until.pop(key, None)
        if wake_at is None:
            self._wake_at.pop(key, None)
        else:
            self.wake(key, wake_at, urgency)
        self._finish(key)

    def failed(self, key: K, now: float, retry_after: float | None = None) -> float:
        """Hold the key back, longer each time and at least as long as the server asked; returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = max(self._backoff.delay(failures), retry_after or 0.0)
        self._hold_until[key] = now + delay
        self.wake(key, now + delay)
        self._again.pop(key, None)
        self._running.discard(key)
        return delay

    def forget(self, key: K) -> None:
        """The object is gone: nothing about it stays in memory."""
        for times in (self._rank, self._since, self._hold_until):
            times.pop(key, None)
        self._wake_at.pop(key, None)
        self._again.pop(key, None)
        self._failures.pop(key, None)

    def _finish(self, key: K) -> None:
        self._running.discard(key)
        if again := self._again.pop(key, None):
            rank, since = again
            self._rank[key], self._since[key] = rank, since
            heapq.heappush(self._ready, (rank, next(self._order), key))

    @property
    def depth(self) -> int:
        return len(self._rank) + len(self._again)

    @property
    def running(self) -> int:
        return len(self._running)

    def oldest_age(self, now: float) -> float:
        since = min(self._since.values(), default=now)
        return now - min(since, min((s for _, s in self._again.values()), default=now))
