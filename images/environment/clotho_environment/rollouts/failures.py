"""Failures of environment code: logged once each, retried with growing pauses, final after too many in a row."""

import logging
import traceback
from collections import Counter
from dataclasses import dataclass

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
MESSAGE_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class Setback:
    """How long the worker pauses; `is_final` after too many failures in a row."""

    pause_seconds: float
    is_final: bool


def next_setback(consecutive: int, limit: int) -> Setback:
    pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(consecutive - 1, 30))
    return Setback(pause, is_final=consecutive >= limit)


class FailureLog:
    """Counts failures in a row; prints the traceback of each new kind and only counts the repetitions."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: Counter[tuple[str, str]] = Counter()
        self.consecutive = 0

    def success(self) -> None:
        self.consecutive = 0

    def failure(self, error: BaseException) -> Setback:
        self.consecutive += 1
        place = _place(error)
        kind = (type(error).__name__, place)
        self._seen[kind] += 1
        count = self._seen[kind]
        if count == 1:
            log.error("rollout failed: %s", summarize(error), exc_info=error)
        elif count & (count - 1) == 0:  # 2, 4, 8, ...: repetitions stay visible without filling the log
            log.error("rollout failed %d times: %s", count, summarize(error))
        return next_setback(self.consecutive, self._limit)


def summarize(error: BaseException) -> str:
    place = _place(error)
    return f"{type(error).__name__}: {str(error)[:MESSAGE_LIMIT]}" + (f" ({place})" if place else "")


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
