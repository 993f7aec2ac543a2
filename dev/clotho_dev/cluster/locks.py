"""Two builds of the same thing at once would take twice as long each; the lock dies with its holder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clotho_dev.cluster.console import say


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process is building the same {what}; waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
