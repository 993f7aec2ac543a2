"""JSON from the API server, bounded in depth before anything recursive reads it.

The API server accepts objects 10,000 levels deep; Python's decoders, and every function that walks what they return,
end in a RecursionError far earlier.
"""

import re
from typing import Final

LEVELS: Final = 100  # of one object: enough for every valid one, and far below what Python can follow

# How many containers surround an object in an answer.
BARE: Final = 0
IN_EVENT: Final = 1
IN_LIST: Final = 2

_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]')
_AS_BRACES: Final = bytes.maketrans(b"[]", b"{}")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def bounded(raw: bytes, surrounding: int = BARE) -> bytes:
    """The same bytes, unless an object in them is too deep: then null stands for what is.

    Such an object is still deeper than any spec may be, and is refused for that.
    """
    limit = LEVELS + surrounding
    return _pruned(raw, limit) if _is_deeper(raw, limit) else raw


def _is_deeper(raw: bytes, limit: int) -> bool:
    if raw.count(b"{") + raw.count(b"[") <= limit:
        return False
    without_escapes = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(without_escapes.split(b'"')[::2])
    skeleton = outside_strings.translate(_AS_BRACES, _NO_BRACKETS)
    for _ in range(limit):
        if not skeleton:
            return False
        skeleton = skeleton.replace(b"{}", b"")  # the innermost level of every branch
    return bool(skeleton)


def _pruned(raw: bytes, limit: int) -> bytes:
    pieces: list[bytes] = []
    copied = depth = 0
    for token in _TOKEN.finditer(raw):
        byte = raw[token.start()]
        if byte in b"{[":
            depth += 1
            if depth == limit + 1:
                pieces += (raw[copied : token.start()], b"null")
        elif byte in b"}]":
            if depth == limit + 1:
                copied = token.end()
            depth -= 1
    return b"".join((*pieces, raw[copied:]))
