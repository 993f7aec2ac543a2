"""Locks between processes of this machine; the kernel releases a lock when its holder exits."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from clotho_dev.cluster.console import say
from clotho_dev.cluster.failure import ClusterError


def only_one(path: Path, work: str) -> AbstractContextManager[None]:
    """Wait until no other process does this work, e.g. `building the images`."""

    def wait(lock: IO[str]) -> None:
        say(f"Another process is {work}; waiting for it ...")
        fcntl.flock(lock, fcntl.LOCK_EX)

    return _locked(path, wait)


def exclusive(path: Path, refusal: str) -> AbstractContextManager[None]:
    """Fail at once with this sentence while another process holds the lock."""

    def refuse(_: IO[str]) -> None:
        raise ClusterError(refusal) from None

    return _locked(path, refuse)


@contextmanager
def _locked(path: Path, when_held: Callable[[IO[str]], None]) -> Iterator[None]:
    """`when_held` is called while another process holds the lock, and returns when this one does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            when_held(lock)
        yield
