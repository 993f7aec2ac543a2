"""How often an agent may look at a run. The last look is written on the run itself: it outlives this process."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from clotho.api.names import GROUP
from clotho.cluster.outcomes import Conflict
from clotho.workspace.objects import Workspace

ANNOTATION: Final = f"{GROUP}/last-status-check"
ATTEMPTS: Final = 5

Object = dict[str, Any]


def seconds_left(run: Mapping[str, Any], interval_seconds: int, now: datetime) -> int:
    """Until the next look is allowed; 0 when it is. A time in the future counts as never."""
    written = (run["metadata"].get("annotations") or {}).get(ANNOTATION, "")
    try:
        last = datetime.fromisoformat(written)
    except ValueError:
        return 0
    if last.tzinfo is None or last > now + timedelta(minutes=5):
        return 0
    return max(0, math.ceil((last + timedelta(seconds=interval_seconds) - now).total_seconds()))


async def take_turn(workspace: Workspace, name: str, interval_seconds: int, now: datetime) -> tuple[Object, int]:
    """The run and 0, with the look written down; or the run and the seconds that are left.

    Of two agents that look at once, one wins: the write holds only for the version that was read.
    """
    for attempt in range(ATTEMPTS):
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
        except Conflict:  # its status changed in between, or another agent was faster
            if attempt == ATTEMPTS - 1:
                raise
            continue
        return run, 0
    raise AssertionError("unreachable")
