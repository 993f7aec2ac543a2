"""What the command line prints: one line for each long step, with its progress and its duration."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Step:
    title: str
    started: float = field(default_factory=time.monotonic)
    last_line: float = 0.0

    def update(self, detail: str) -> None:
        """Rewrites its line on a terminal; in a log, one line every half minute is enough."""
        seconds = time.monotonic() - self.started
        if sys.stderr.isatty():
            print(f"\r\033[K{self.title} · {seconds:.0f} s · {detail[:70]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self.last_line > 30:
            self.last_line = time.monotonic()
            say(f"{self.title} · {seconds:.0f} s · {detail}")


@contextmanager
def step(title: str) -> Iterator[Step]:
    current = Step(title, last_line=time.monotonic())
    if sys.stderr.isatty():
        current.update("starting")
    else:
        say(f"{title} ...")
    yield current
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    say(f"{title}: done in {time.monotonic() - current.started:.1f} s")
