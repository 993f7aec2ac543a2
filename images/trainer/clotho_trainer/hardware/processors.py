"""How many threads torch may use: more than the container's share only makes them fight."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup/cpu.max")
_TINY = 20_000_000  # parameters; below this, handing work to a second thread costs more than it gains


def thread_count(parameters: int, available: int) -> int:
    return 1 if parameters < _TINY else available


def available_processors(cgroup: Path = _CGROUP) -> int:
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = cgroup.read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, round(int(quota) / int(period))))
