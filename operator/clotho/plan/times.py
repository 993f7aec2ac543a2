"""Arithmetic on moments, shared by the planners."""

from collections.abc import Iterable
from datetime import datetime, timedelta


def earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


def later(start: datetime, seconds: float) -> datetime:
    return start + timedelta(seconds=seconds)
