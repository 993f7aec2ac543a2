"""Text that fits a width, counted in columns of a terminal: clipped, wrapped, or in a table."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

UNLIMITED: Final = sys.maxsize
NARROWEST: Final = 5  # column of a table
GAP: Final = 2


def columns(text: str) -> int:
    """A control character counts as one: it is replaced before it is printed."""
    return len(text) if text.isascii() else sum(map(_columns, _letters(text)))


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
            lines.append(_head(rest, width) or _letters(rest)[0])
            rest = rest.removeprefix(lines[-1])
    return lines[1:] or lines


def table(header: Sequence[str], rows: Iterable[Sequence[str]], width: int = UNLIMITED) -> list[str]:
    """Where it is too wide, the widest column is narrowed first; of equals, the last."""
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
    """The header of a table and the rows that fit; the last line counts the others."""
    if len(lines) <= room:
        return list(lines)
    hidden = len(lines) - max(room - 1, 1)
    return [*lines[: room - 1], f"  … {hidden} more"] if room > 0 else []


def _cell(text: str, width: int) -> str:
    clipped = clip(text, width)
    return clipped + " " * (width - columns(clipped))


def _head(text: str, width: int) -> str:
    """What fits, without cutting through what is one letter to its reader, such as a joined emoji."""
    if text.isascii():
        return text[: max(width, 0)]
    letters = _letters(text)
    return "".join(letters[: sum(end <= width for end in accumulate(map(_columns, letters)))])


def _letters(text: str) -> list[str]:
    from wcwidth import iter_graphemes

    return list(iter_graphemes(text))


def _columns(letter: str) -> int:
    from wcwidth import wcswidth

    width = wcswidth(letter)
    return len(letter) if width < 0 else width
