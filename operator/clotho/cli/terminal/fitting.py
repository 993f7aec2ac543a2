"""Text that has to fit, counted in the columns it takes on a terminal: clipped, wrapped, or in a table."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

UNLIMITED: Final = sys.maxsize
NARROWEST: Final = 5  # a column of a table: less says nothing
GAP: Final = 2


def columns(text: str) -> int:
    return sum(map(_columns, text))


def clip(text: str, width: int) -> str:
    return text if columns(text) <= width else _head(text, width - 1) + "…"


def wrap(text: str, width: int) -> list[str]:
    """One line at least; a word too long for a line is broken."""
    lines = [""]
    for word in text.split():
        if lines[-1] and columns(lines[-1]) + 1 + columns(word) <= width:
            lines[-1] += f" {word}"
            continue
        rest = word
        while rest:
            lines.append(_head(rest, width) or rest[0])
            rest = rest.removeprefix(lines[-1])
    return lines[1:] or lines


def table(header: Sequence[str], rows: Iterable[Sequence[str]], width: int = UNLIMITED) -> list[str]:
    """Where it is too wide, the widest column gives way first; of equals, the last."""
    everything = [header, *rows]
    widths = [max(map(columns, cells)) for cells in zip(*everything, strict=True)]
    while sum(widths) + GAP * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widest = max(range(len(widths)), key=lambda column: (widths[column], column))
        widths[widest] -= 1
    return [(" " * GAP).join(map(_cell, row, widths)).rstrip() for row in everything]


def without_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int, names: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """The table without the first of the named columns, then the second, until it fits."""
    heads, body = list(header), [list(row) for row in rows]
    for name in names:
        if max(map(columns, table(heads, body))) <= width:
            break
        place = heads.index(name)
        heads, *body = [[*row[:place], *row[place + 1 :]] for row in [heads, *body]]
    return heads, body


def first_rows(lines: Sequence[str], room: int) -> list[str]:
    """Of a table, its header and what there is room for; the last line says how many rows are missing."""
    if len(lines) <= room:
        return list(lines)
    hidden = len(lines) - max(room - 1, 1)
    return [*lines[: room - 1], f"  … {hidden} more"] if room > 0 else []


def _cell(text: str, width: int) -> str:
    clipped = clip(text, width)
    return clipped + " " * (width - columns(clipped))


def _head(text: str, width: int) -> str:
    return text[: sum(end <= width for end in accumulate(map(_columns, text)))]


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me"):  # an accent stands on the letter before it
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
