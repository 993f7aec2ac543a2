"""What a command ends with when it cannot do what was asked: one line for people, one number for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from clotho.authoring.nearest import nearest


class Exit(IntEnum):
    """docs/cli.md explains them; scripts rely on them."""

    OK = 0
    UNSUCCESSFUL = 1  # the run failed, the test failed, the check found something missing
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4  # by the API server: no right, not valid, locked, or in the wrong state
    UNREACHABLE = 5
    TIMEOUT = 6
    INTERRUPTED = 130


class Failure(Exception):  # noqa: N818 - it is what the person reads, not a fault of the program
    def __init__(self, message: str, code: Exit = Exit.UNSUCCESSFUL) -> None:
        super().__init__(message)
        self.code = code


def unknown(kind: str, word: str, known: Iterable[str], namespace: str, elsewhere: str = "") -> Failure:
    """`elsewhere`: how to look for it in other namespaces than this one."""
    names = sorted(known)
    there = f"there is {', '.join(names) or 'none'}; name another namespace with -n{elsewhere}"
    return Failure(f"no {kind} {word!r} in namespace {namespace}{nearest(word, names) or f'; {there}'}", Exit.NOT_FOUND)
