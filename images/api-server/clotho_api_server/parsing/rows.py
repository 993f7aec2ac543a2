"""Long JSON arrays of numbers, judged by their bytes at once: no Python object is made of any number in them.

What is not plainly right is left to the decoder, which accepts every spelling and reports what is wrong.
"""

from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

LongRows = dict[bytes, Raw]
"""What stands for a row -> the row."""

SHORT: Final = 512  # bytes; not worth cutting out
WORTH_A_LOOK: Final = 6000  # bytes; up to here decoding is as fast
MOST_BRACKETS: Final = 10_000  # a few milliseconds
_OPENINGS: Final = b"-0123456789 "
_PAIRS_OF_INT32: Final = 4  # of digits, side by side in any number too large for 32 bits and in none below 8 digits
_WORDS_OF_A_FLOAT: Final = 32  # of 8 bytes without a comma, in any number too large for a float
_SYNTAX: Final = msgspec.json.Decoder(Raw)
_Flags = npt.NDArray[np.bool_]
_Unsigned = TypeVar("_Unsigned", np.uint16, np.uint64)


def cut(body: bytes) -> tuple[bytes, LongRows]:
    """The text with a number that is too large to be accepted in the place of each long row."""
    parts: list[bytes | memoryview] = []
    rows: LongRows = {}
    view, kept, end = memoryview(body), 0, -1
    for _ in range(MOST_BRACKETS):
        start, end = end + 1, body.find(b"]", end + 1)
        if end < 0:
            break
        start = body.rfind(b"[", start, end)
        if start < 0 or end - start <= SHORT or body[start + 1] not in _OPENINGS:
            continue
        stand_in = b"[1e%d]" % (100_000 + len(rows))
        rows[stand_in] = Raw(view[start : end + 1])
        parts += (view[kept:start], stand_in)
        kept = end + 1
    return (b"".join((*parts, view[kept:])), rows) if rows else (body, rows)


def apart(row: Raw, known: Raw, count: int) -> tuple[Raw, int]:
    """The row up to its last negative number, and how many entries follow, if `known`, of `count`, ends with them too.

    A mask does: it repeats its sequence's tokens, but for those that are not trained on, which are negative in it.
    """
    text, known_text = bytes(row), bytes(known)
    end = text.find(b",", text.rfind(b"-") + 1)
    tail = text[end:]
    if end < 0 or not known_text.endswith(tail):
        return row, 0
    return Raw(text[:end] + b"]"), count - known_text.count(b",", 0, -len(tail)) - 1


def count_integers(row: Raw) -> int | None:
    """How many integers of 32 bits the array holds; None when it must be decoded to be counted."""
    text = _between_brackets(row)
    if text is None or text.max() > ord("9"):
        return None
    digit, comma, space = text >= ord("0"), text == ord(","), text == ord(" ")
    right = (comma[1:] & digit[:-1]) | digit[1:] | (space[1:] & comma[:-1])  # each byte after the one before it
    if not right.all():
        right |= (text[1:] == ord("-")) & (comma | space)[:-1]
    has_leading_zero = (text[1:-1] == ord("0")) & (digit[2:] > digit[:-2])
    is_plain = (
        right.all()
        and digit[-1]
        and (digit[0] or text[0] == ord("-"))
        and not (text[0] == ord("0") and digit[1])
        and not has_leading_zero.any()
        and not _has_run(_grouped(digit, np.uint16) == 0x0101, _PAIRS_OF_INT32)
    )
    return int(np.count_nonzero(comma)) + 1 if is_plain else None


def count_numbers(row: Raw) -> int | None:
    """How many finite numbers the array holds; None when it must be decoded to be counted."""
    text = _between_brackets(row)
    if text is None or not _is_json(row) or (text == ord('"')).any():
        return None
    letters = np.flatnonzero(text > ord("9"))
    if (text[letters] != ord("e")).any() or (text[letters + 1] != ord("-")).any():
        return None
    comma = text == ord(",")
    if _has_run(_grouped(comma, np.uint64) == 0, _WORDS_OF_A_FLOAT):
        return None
    return int(np.count_nonzero(comma)) + 1


def _between_brackets(row: Raw) -> npt.NDArray[np.uint8] | None:
    text = np.frombuffer(memoryview(row), np.uint8)
    return text[1:-1] if len(text) > WORTH_A_LOOK and text[0] == ord("[") and text[-1] == ord("]") else None


def _grouped(flags: _Flags, kind: type[_Unsigned]) -> npt.NDArray[_Unsigned]:
    """Several flags as one number; some at the end are left out."""
    size = np.dtype(kind).itemsize
    return flags[: len(flags) // size * size].view(kind)


def _is_json(row: Raw) -> bool:
    try:
        _SYNTAX.decode(row)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _has_run(flags: _Flags, length: int) -> bool:
    """Whether so many neighbours are set: each pass lets only the starts of runs twice as long survive."""
    known = 1
    while known < length and flags.any():
        step = min(known, length - known)
        flags = flags[step:] & flags[:-step]
        known += step
    return bool(flags.any())
