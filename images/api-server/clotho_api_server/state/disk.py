"""Free space of the data volume. A reserve is kept from groups, so that a full volume can be drained."""

import os
from pathlib import Path
from typing import Final

from clotho_api_server.refusals import StorageError

RESERVE_BYTES: Final = 64 * 1024**2  # for leases and acknowledgements, which free space
PROBLEM: Final = (
    "the API server's volume is full "
    f"(the last {RESERVE_BYTES // 1024**2} MiB are kept for leases and acknowledgements): "
    "enlarge it, or wait until the trainer has trained what is queued"
)


class VolumeFullError(StorageError):
    """Groups and new environments are refused; leases and acknowledgements still work."""


class Disk:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def free_bytes(self) -> int:
        volume = os.statvfs(self._folder)
        return volume.f_bavail * volume.f_frsize

    @property
    def problem(self) -> str | None:
        """None while groups have room."""
        return None if self.free_bytes >= RESERVE_BYTES else PROBLEM

    def check_room(self, size: int) -> None:
        if self.free_bytes - size < RESERVE_BYTES:
            raise VolumeFullError(PROBLEM)
