"""Words that are near to one that does not exist."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], most: int = 3, similarity: float = 0.6) -> str:
    """`; did you mean x or y?`, or nothing. `similarity` is at least that much of 1, which is the same word."""
    words = list(known)
    same = [each for each in words if each.lower() == word.lower()]
    close = same or difflib.get_close_matches(word, words, n=most, cutoff=similarity)
    return f"; did you mean {' or '.join(close)}?" if close else ""
