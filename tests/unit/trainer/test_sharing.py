"""Which rows of a batch attend to their prompt together."""

from dataclasses import dataclass, field

import pytest
import torch

from clotho_trainer.inference.paged.sharing import SharedPrompts, Tile, find_tiles

BLOCK = 4


@dataclass
class Batch:
    """Rows as their blocks; a row is about to write to its last block unless it has a position."""

    name: str
    rows: list[list[int]]
    tiles: list[tuple[int, int, int]]  # the first row, members, blocks
    positions: dict[int, int] = field(default_factory=dict)
    most: int = 4


@pytest.mark.parametrize(
    "batch",
    [
        Batch("no rows", [], []),
        Batch("a row alone", [[1, 2, 3]], []),
        Batch("rows that differ", [[1, 2], [3, 4], [5, 6]], []),
        Batch("prompts of less than a block", [[1], [2], [3]], []),
        Batch("a group", [[1, 2, 3], [1, 2, 4], [1, 2, 5, 6]], [(0, 3, 2)]),
        Batch("groups of different lengths", [[1, 2], [1, 3], [4, 5, 6], [4, 5, 7]], [(0, 2, 1), (2, 2, 2)]),
        Batch("rows alone between groups", [[9, 8], [1, 2], [1, 3], [7, 6], [4, 5], [4, 10]], [(1, 2, 1), (4, 2, 1)]),
        Batch("only what all begin with", [[1, 2, 3, 4], [1, 2, 3, 5], [1, 6, 7, 8]], [(0, 3, 1)]),
        Batch("only neighbours", [[1, 2], [3, 4], [1, 5]], []),
        Batch("the same blocks after others", [[1, 2, 3], [4, 2, 3]], []),
        Batch("a full tile", [[1, 2 + row] for row in range(4)], [(0, 4, 1)]),
        Batch("more than a tile has", [[1, 2 + row] for row in range(5)], [(0, 2, 1), (2, 3, 1)]),
        Batch("one left over", [[1, 2], [1, 3], [1, 4]], [(1, 2, 1)], most=2),
        Batch("tiles too small for two", [[1, 2], [1, 3]], [], most=1),
        Batch("more query heads than a tile has", [[1, 2], [1, 3]], [], most=0),
        Batch("not the block that is written to", [[1, 2, 3], [1, 2, 3]], [(0, 2, 1)], positions={0: 7, 1: 11}),
        Batch("the first token of a new block", [[1, 2, 3], [1, 2, 4]], [(0, 2, 2)], positions={0: 8, 1: 8}),
        Batch("blocks reserved ahead", [[1, 2, 3, 4], [1, 5, 6, 7]], [(0, 2, 1)], positions={0: 4, 1: 5}),
    ],
    ids=lambda batch: batch.name,
)
def test_neighbours_with_the_same_first_blocks_are_tiles(batch: Batch) -> None:
    positions = [batch.positions.get(row, len(blocks) * BLOCK - 1) for row, blocks in enumerate(batch.rows)]
    expected = [Tile(row, members, blocks * BLOCK) for row, members, blocks in batch.tiles]
    assert find_tiles(batch.rows, positions, BLOCK, batch.most) == expected


def test_the_device_sees_the_rows_of_the_last_load() -> None:
    shared = SharedPrompts(max_rows=6, queries_a_row=16, device=torch.device("cpu"))
    addresses = [tensor.data_ptr() for tensor in (shared.count, shared.tiles, shared.tokens)]
    shared.load([[9, 8], [1, 2, 3], [1, 2, 4], [5, 6], [5, 7]], [7, 11, 8, 4, 5], BLOCK)
    assert shared.tiles[: shared.count].tolist() == [[1, 2, 8], [3, 2, 4]]
    assert shared.tokens.tolist() == [0, 8, 8, 4, 4, 0]
    shared.load([[1, 2], [3, 4]], [4, 4], BLOCK)
    assert (shared.count.item(), shared.tokens.tolist()) == (0, [0] * 6)
    assert addresses == [tensor.data_ptr() for tensor in (shared.count, shared.tiles, shared.tokens)]


@pytest.mark.parametrize(("in_fp8", "tiles"), [(False, 2), (True, 1)])
def test_short_prompts_are_not_worth_it_in_8_bits(*, in_fp8: bool, tiles: int) -> None:
    shared = SharedPrompts(max_rows=4, queries_a_row=1, device=torch.device("cpu"), in_fp8=in_fp8)
    shared.load([[1, 2, 3], [1, 2, 4], [5, 6], [5, 7]], [256, 256, 128, 128], 128)
    assert shared.count.item() == tiles
    assert shared.tiles[0].tolist() == [0, 2, 256]
    assert shared.tokens.tolist() == [256, 256, 0 if in_fp8 else 128, 0 if in_fp8 else 128]
