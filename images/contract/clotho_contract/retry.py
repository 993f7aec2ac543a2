"""Retries with exponential backoff, jittered so that pods do not retry in lockstep."""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

T = TypeVar("T")
BeforeWait = Callable[[Exception, float], None]
LONGEST_RETRY_AFTER: Final = 600.0  # seconds
_TLS_MODE: Final = re.compile(r" ssl:(?:\w+|<[^>]*>)(?= \[)")  # in every connection error of aiohttp
_jitter = random.Random()  # noqa: S311 - spreads retries, keeps no secret


class TransientError(Exception):
    """Worth another attempt: after `retry_after` seconds where given, else after the backoff, at most `within`."""

    def __init__(self, problem: str, *, retry_after: float | None = None, within: float | None = None) -> None:
        super().__init__(problem)
        self._retry_after = retry_after
        self._within = within

    def pause(self, backoff: float) -> float:
        if self._retry_after is not None:
            return self._retry_after
        return backoff if self._within is None else min(backoff, self._within)


class Backoff(Struct, frozen=True):
    """Seconds before the second attempt, doubled for each further one up to the cap."""

    first: float = 0.1
    cap: float = 10.0

    def delay(self, failures: int) -> float:
        """Jittered between half and all of it."""
        longest = min(self.cap, self.first * 2.0 ** min(failures - 1, 64))
        return longest * _jitter.uniform(0.5, 1.0)


async def retrying(
    operation: Callable[[], Awaitable[T]],
    *,
    on: tuple[type[Exception], ...] = (TransientError,),
    backoff: Backoff = Backoff(),  # noqa: B008 - immutable
    before_wait: BeforeWait | None = None,
) -> T:
    """The result of the first attempt that succeeds. `before_wait(error, seconds)` gives up by raising."""
    failures = 0
    while True:
        try:
            return await operation()
        except on as error:
            failures += 1
            delay = backoff.delay(failures)
            pause = error.pause(delay) if isinstance(error, TransientError) else delay
            if before_wait is not None:
                before_wait(error, pause)
        await asyncio.sleep(pause)


def reason_of(error: Exception) -> str:
    """For people. Some errors, timeouts among them, have no message."""
    return _TLS_MODE.sub("", str(error)) or type(error).__name__


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asked to wait; None where it gave none, or nothing usable."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds <= LONGEST_RETRY_AFTER else None
