"""Prompts that were read before: environments ask for the answers of a group one by one, and much later, too."""

from collections import OrderedDict
from collections.abc import Sequence as Many

from clotho_trainer.inference.core.block_manager import BlockManager


class PromptCache:
    """Owns the blocks of the last prompts, until others need them. Pure bookkeeping."""

    def __init__(self, blocks: BlockManager, most: int) -> None:
        self._blocks = blocks
        self._most = most
        self._kept: OrderedDict[tuple[int, ...], tuple[int, ...]] = OrderedDict()  # the least recently used first

    def __contains__(self, prompt: tuple[int, ...]) -> bool:
        return prompt in self._kept

    @property
    def spare(self) -> int:
        """Blocks that it alone owns."""
        return sum(self._blocks.owners(block) == 1 for kept in self._kept.values() for block in kept)

    def keep(self, prompt: tuple[int, ...], blocks: Many[int]) -> None:
        """The last block may be partly filled, and its sequence go on to fill it."""
        if not self._most or prompt in self._kept:
            return
        if len(self._kept) == self._most:
            self._drop_oldest()
        self._blocks.share(blocks)
        self._kept[prompt] = tuple(blocks)

    def take(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Its blocks, shared with the caller."""
        self._kept.move_to_end(prompt)
        self._blocks.share(self._kept[prompt])
        return self._kept[prompt]

    def make_room(self, count: int) -> bool:
        """Whether as many blocks are free now."""
        while self._blocks.free_count < count and self._kept:
            self._drop_oldest()
        return self._blocks.free_count >= count

    def clear(self) -> None:
        while self._kept:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._blocks.free(self._kept.popitem(last=False)[1])
