"""Rows that begin with the same blocks: what they share is attended to once, for all of them."""

from collections.abc import Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

import torch

QUERIES = 64  # of a tile in one key head: the matrix unit takes as many at once
FEWEST_ROWS = 8  # of a step that looks for such rows: a kernel more costs as much as reading a little twice
_FEWEST_TOKENS = {False: 1, True: 256}  # that are worth it; second in 8 bits, where reading takes half as long


class Tile(NamedTuple):
    """Neighbouring rows and the tokens that all of them begin with."""

    row: int  # the first of them
    members: int
    tokens: int


def find_tiles(
    tables: Sequence[Sequence[int]], positions: Sequence[int], block_size: int, most: int, fewest_tokens: int = 1
) -> list[Tile]:
    """Neighbours with the same first block, at most `most` in a tile. Only blocks before those that are written to
    count: the tiles hold while positions grow."""
    read_only = [table[: position // block_size] for table, position in zip(tables, positions, strict=True)]
    tiles, row = [], 0
    for _, run in groupby(read_only, key=lambda blocks: blocks[:1]):
        members = list(run)
        parts = -(-len(members) // max(most, 1))  # of about the same size, as a row that is left over shares nothing
        for part in range(parts):
            first, last = part * len(members) // parts, (part + 1) * len(members) // parts
            tokens = _common(members[first:last]) * block_size
            if tokens >= fewest_tokens and last - first > 1:
                tiles.append(Tile(row + first, last - first, tokens))
        row += len(members)
    return tiles


def _common(tables: Sequence[Sequence[int]]) -> int:
    columns = zip(*tables, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


class SharedPrompts:
    """The tiles on the device, in tensors that stay where they are: CUDA graphs keep the addresses."""

    def __init__(self, max_rows: int, queries_a_row: int, device: torch.device, *, in_fp8: bool = False) -> None:
        """`queries_a_row`: query heads of a key head."""
        self._most_members = QUERIES // queries_a_row
        self._fewest_tokens = _FEWEST_TOKENS[in_fp8]
        self._loaded: list[Tile] = []
        self.count = torch.zeros(1, dtype=torch.int32, device=device)
        self.tiles = torch.zeros(max_rows // 2, len(Tile._fields), dtype=torch.int32, device=device)
        self.tokens = torch.zeros(max_rows, dtype=torch.int32, device=device)  # of each row that its tile attends to

    @property
    def has_tiles(self) -> bool:
        return bool(self._loaded)

    def load(self, tables: Sequence[Sequence[int]], positions: Sequence[int], block_size: int) -> None:
        tiles = find_tiles(tables, positions, block_size, self._most_members, self._fewest_tokens)
        if tiles == self._loaded:  # as a rule where nothing is shared
            return
        self._loaded = tiles
        tokens = [0] * len(self.tokens)
        for tile in tiles:
            tokens[tile.row : tile.row + tile.members] = [tile.tokens] * tile.members
        self.count.fill_(len(tiles))
        self.tiles[: len(tiles)] = torch.tensor(tiles, dtype=torch.int32).reshape(-1, len(Tile._fields))
        self.tokens.copy_(torch.tensor(tokens, dtype=torch.int32))
