"""Words that are near to one that does not exist."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], most: int = 3) -> str:
    """`; did you mean x or y?`, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=most)
    return f"; did you mean {' or '.join(close)}?" if close else ""
