"""Who owns which page of the key-value cache. Pages of a common prompt have several owners."""

from collections import Counter
from collections.abc import Iterable

SCRAP = 0  # what is written for nobody goes here; never given out


class NoPagesLeftError(Exception):
    """Somebody has to give pages back first."""


class Pages:
    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, SCRAP, -1))
        self._owners: Counter[int] = Counter()

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        if count > len(self._free):
            raise NoPagesLeftError
        pages = [self._free.pop() for _ in range(count)]
        self._owners.update(pages)
        return pages

    def share(self, pages: Iterable[int]) -> None:
        self._owners.update(pages)

    def give_back(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._owners[page] -= 1
            if self._owners[page] == 0:
                del self._owners[page]
                self._free.append(page)


def pages_for(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)
