"""The part of a terminal that a live view redraws; in a log, a line whenever something is new."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import Final, TextIO

WIDEST: Final = 110


def terminal_width() -> int:
    return min(shutil.get_terminal_size().columns, WIDEST)


class Screen:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._drawn = 0
        self._told = ""

    def show(self, lines: Sequence[str]) -> None:
        """Of a view, the first two lines say the phase and what it means."""
        if self._stream.isatty():
            up = f"\033[{self._drawn}A" if self._drawn else ""
            text = "\n".join(f"\033[K{line}" for line in lines)
            print(f"{up}{text}\033[J", file=self._stream, flush=True)
            self._drawn = len(lines)
        elif (news := f"{lines[0].split('  ')[1]}: {lines[1]}") != self._told:
            self._told = news
            print(f"{time.monotonic() - self._started:6.1f} s  {news}", file=self._stream, flush=True)
