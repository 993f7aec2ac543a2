"""Which block of the key-value cache belongs to which sequences. Blocks of a common prefix have several owners."""

from collections import Counter
from collections.abc import Iterable

NULL_BLOCK = 0  # unused rows and padding write here; never allocated


class NoFreeBlocksError(Exception):
    """A sequence has to free blocks first."""


class BlockManager:
    def __init__(self, count: int, block_size: int) -> None:
        self.block_size = block_size
        self._free = list(range(count - 1, NULL_BLOCK, -1))
        self._owners: Counter[int] = Counter()

    @property
    def free_count(self) -> int:
        return len(self._free)

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        if count > len(self._free):
            raise NoFreeBlocksError
        blocks = [self._free.pop() for _ in range(count)]
        self._owners.update(blocks)
        return blocks

    def owners(self, block: int) -> int:
        return self._owners[block]

    def share(self, blocks: Iterable[int]) -> None:
        self._owners.update(blocks)

    def free(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._owners[block] -= 1
            if self._owners[block] == 0:
                del self._owners[block]
                self._free.append(block)
