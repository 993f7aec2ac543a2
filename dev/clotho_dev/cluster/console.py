"""What the command line prints: one line for each long step, with its progress and its duration."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Overall:
    """How far the whole of several steps is; without an estimate, nothing is shown."""

    def __init__(self) -> None:
        self._started, self._minutes = 0.0, 0

    def begin(self, minutes: int) -> None:
        self._started, self._minutes = time.monotonic(), minutes

    def __str__(self) -> str:
        if not self._minutes:
            return ""
        elapsed = (time.monotonic() - self._started) / 60
        return f"[{elapsed:.0f} of about {max(self._minutes, math.ceil(elapsed))} min] "


overall = Overall()


@dataclass
class Step:
    title: str
    started: float = field(default_factory=time.monotonic)
    last_line: float = 0.0

    def update(self, detail: str) -> None:
        """Rewrites its line on a terminal; in a log, one line every half minute is enough."""
        seconds = time.monotonic() - self.started
        if sys.stderr.isatty():
            print(
                f"\r\033[K{overall}{self.title} · {seconds:.0f} s · {detail[:60]}", end="", file=sys.stderr, flush=True
            )
        elif time.monotonic() - self.last_line > 30:
            self.last_line = time.monotonic()
            say(f"{overall}{self.title} · {seconds:.0f} s · {detail}")


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
