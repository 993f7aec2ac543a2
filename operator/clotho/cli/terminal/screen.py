"""The part of a terminal that a live view redraws; in a log, a line for each change."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable
from typing import Final, TextIO

from clotho.cli.terminal.fitting import UNLIMITED
from clotho.cli.terminal.output import printable
from clotho.cli.terminal.view import Frame

WIDEST: Final = 110  # for prose: longer lines are hard to read


def terminal_width() -> int:
    return min(shutil.get_terminal_size().columns, WIDEST)


def page_width() -> int:
    """The width of standard output: what goes into a pipe or a file is never cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def listed(kind: str, names: Iterable[str]) -> str:
    """`Known fields: a, b, ...` on lines of their own, as wide as the terminal."""
    text = f"Known {kind}: {', '.join(sorted(names)) or 'none'}"
    return "\n" + textwrap.fill(text, terminal_width(), subsequent_indent="  ", break_on_hyphens=False)


class Screen:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._drawn = 0
        self._news = ""

    def show(self, frame: Frame) -> None:
        if self._stream.isatty():
            self._draw(frame)
        elif frame.news != self._news:
            self._news = frame.news
            self._print(f"{time.monotonic() - self._started:6.1f} s  {printable(frame.news)}")

    def _draw(self, frame: Frame) -> None:
        """The cursor ends below the frame, on a line that the frame leaves free."""
        size = shutil.get_terminal_size()
        lines = frame.lines(size.columns, size.lines - 1)
        up = f"\033[{self._drawn}A" if self._drawn else ""
        text = "\n".join(f"\033[K{printable(line)}" for line in lines)
        self._print(f"{up}{text}\033[J")
        self._drawn = len(lines)

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
