"""Files that must be on the disk, and be what they were: flushing, a fingerprint of the bytes, and a full volume."""

import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_NEXT_TO_NOTHING: Final = 1024**2


class VolumeFullError(Exception):
    """Files did not fit. The message says how much room there is."""


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_full(folder: Path, error: Exception) -> bool:
    """Asked before anything is cleared away: torch and safetensors do not tell why a file could not be written."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    found = shutil.disk_usage(folder)
    return found.total > 0 and found.free < _NEXT_TO_NOTHING  # some network file systems tell nothing


def room_in(folder: Path) -> str:
    found = shutil.disk_usage(folder)
    return f"{found.free / 1e9:.1f} GB of {found.total / 1e9:.1f} GB are free in {folder}"
