"""How often an agent may check a run. The last check is an annotation of the run, so it outlives this process."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from clotho.api.names import GROUP
from clotho.cluster.outcomes import Conflict
from clotho.workspace.objects import Workspace

ANNOTATION: Final = f"{GROUP}/last-status-check"
ATTEMPTS: Final = 5
EARLY: Final = timedelta(minutes=15)
EARLY_INTERVAL_SECONDS: Final = 60

Object = dict[str, Any]


def seconds_left(run: Mapping[str, Any], interval_seconds: int, now: datetime) -> int:
    """Until the next check is allowed; 0 when it is. A time in the future counts as never."""
    written = (run["metadata"].get("annotations") or {}).get(ANNOTATION, "")
    try:
        last = datetime.fromisoformat(written)
    except ValueError:
        return 0
    if last.tzinfo is None or last > now + timedelta(minutes=5):
        return 0
    interval = min(interval_seconds, EARLY_INTERVAL_SECONDS) if _changes_soon(run, now) else interval_seconds
    return max(0, math.ceil((last + timedelta(seconds=interval) - now).total_seconds()))


def _changes_soon(run: Mapping[str, Any], now: datetime) -> bool:
    """In its first minutes, and until it trains, a run can fail at any moment; a finished one is read at once."""
    status = run.get("status") or {}
    if status.get("phase", "Pending") != "Running":
        return True
    started = status.get("startTime") or run["metadata"].get("creationTimestamp")
    return started is not None and now - datetime.fromisoformat(started) < EARLY


async def record_check(workspace: Workspace, name: str, interval_seconds: int, now: datetime) -> tuple[Object, int]:
    """The run and 0, with the check recorded; or the run and the seconds that are left.

    Of two agents that check at once, one wins: the write is valid only for the version that was read.
    """
    attempt = 0
    while True:
        run = await workspace.get("TrainingRun", name)
        left = seconds_left(run, interval_seconds, now)
        if left or interval_seconds <= 0:
            return run, left
        metadata = {
            "resourceVersion": run["metadata"]["resourceVersion"],
            "annotations": {ANNOTATION: now.astimezone(UTC).isoformat(timespec="seconds")},
        }
        try:
            await workspace.change("TrainingRun", name, {"metadata": metadata})
            return run, 0
        except Conflict:  # its status changed in between, or another agent checked
            attempt += 1
            if attempt == ATTEMPTS:
                raise
