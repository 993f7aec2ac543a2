"""Locks between processes of this machine; the kernel releases a lock when its holder exits."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clotho_dev.cluster.console import say
from clotho_dev.cluster.failure import ClusterError


@contextmanager
def only_one(path: Path, work: str) -> Iterator[None]:
    """Wait until no other process does this work, e.g. `building the images`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process is {work}; waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def exclusive(path: Path, refusal: str) -> Iterator[None]:
    """Fail at once with this sentence while another process holds the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(refusal) from None
        yield
