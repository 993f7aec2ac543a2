"""Words that are near to one that does not exist."""

import difflib
from collections.abc import Iterable
from typing import Final

_MARGIN: Final = 0.15  # words that are further behind the nearest one are no help


def nearest(word: str, known: Iterable[str], most: int = 3, similarity: float = 0.6) -> str:
    """`; did you mean x or y?`, or nothing. `similarity` is at least that much of 1, which is the same word."""
    words = list(known)
    same = [each for each in words if each.lower() == word.lower()]
    close = same or _close(word, words, most, similarity)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _close(word: str, words: list[str], most: int, similarity: float) -> list[str]:
    found = difflib.get_close_matches(word, words, n=most, cutoff=similarity)
    ratios = [difflib.SequenceMatcher(None, each, word).ratio() for each in found]
    return [each for each, ratio in zip(found, ratios, strict=True) if ratio >= ratios[0] - _MARGIN]
