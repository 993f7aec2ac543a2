"""Room on the disk: asked for before minutes of work, and named where it has run out."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from clotho_dev.cluster.failure import ClusterError

FULL = "the disk is full; free some space and try again"


def is_full(output: Iterable[str]) -> bool:
    """By what a program printed before it failed."""
    return any("no space left on device" in line.lower() for line in output)


def require_room(folder: Path, work: str, gibibytes: int) -> None:
    """`folder` need not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 1024**3
    if free < gibibytes:
        raise ClusterError(
            f"{folder} has {free:.1f} GiB free and {work} needs {gibibytes} GiB:"
            " free some space, or point XDG_CACHE_HOME elsewhere"
        )
