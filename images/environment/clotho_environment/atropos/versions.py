"""Which policy wrote which tokens. Atropos does not carry it, so the gateway remembers answers by their tokens."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from clotho_contract.trajectory import IGNORE_INDEX


class VersionMemory:
    def __init__(self, capacity: int = 65536) -> None:
        self._capacity = capacity
        self._versions: OrderedDict[bytes, int] = OrderedDict()

    def remember(self, tokens: Iterable[int], version: int) -> None:
        key = _digest(tokens)
        self._versions[key] = version
        self._versions.move_to_end(key)
        if len(self._versions) > self._capacity:
            self._versions.popitem(last=False)

    def oldest(self, masks: Iterable[Sequence[int]]) -> int | None:
        """The oldest policy among the answers that a group is made of; None when none of them is known."""
        known = [self._versions.get(_digest(answer)) for mask in masks for answer in _answers(mask)]
        return min((version for version in known if version is not None), default=None)


def _digest(tokens: Iterable[int]) -> bytes:
    """Answers may be long, and many are remembered."""
    return hashlib.blake2b(array("q", tokens).tobytes(), digest_size=16).digest()


def _answers(mask: Sequence[int]) -> Iterator[list[int]]:
    """Each unbroken run of trained tokens is one answer."""
    answer: list[int] = []
    for token in mask:
        if token != IGNORE_INDEX:
            answer.append(token)
        elif answer:
            yield answer
            answer = []
    if answer:
        yield answer
