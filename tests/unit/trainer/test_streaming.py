"""Which rows a product of few rows reads."""

import pytest
import torch

from clotho_trainer.inference.paged import streaming


def rows_of_a_tile(x: torch.Tensor) -> int:
    rows: int = streaming.tiles_of(x, streaming.tile_rows(len(x)), streaming.IN_BOTH).shape[0]
    return rows


@pytest.mark.parametrize(("rows", "tile"), [(1, 64), (64, 64), (65, 128), (128, 128)])
def test_a_tile_reaches_into_the_memory_behind_new_rows(rows: int, tile: int) -> None:
    x = streaming.new_rows(torch.zeros(rows, 8, dtype=torch.bfloat16), 256)
    assert x.shape == (rows, 256)
    assert x.is_contiguous()
    assert rows_of_a_tile(x) == tile


def test_a_tile_reaches_no_further_than_the_memory() -> None:
    whole = torch.zeros(40, 256, dtype=torch.bfloat16)
    assert rows_of_a_tile(whole) == 40
    assert rows_of_a_tile(whole[8:20]) == 32
    assert rows_of_a_tile(whole[:5, 64:128]) == 40


def test_more_rows_than_a_tile_has_are_those_of_the_matrix() -> None:
    store = torch.zeros(300, 128, dtype=torch.bfloat16)
    assert streaming.tiles_of(store[:200], 64, streaming.IN_BOTH).shape[0] == 200
    assert len(streaming.new_rows(torch.zeros(200, 8), 64)) == 200
