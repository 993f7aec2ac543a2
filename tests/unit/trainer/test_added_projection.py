"""How projections that are added to the residual are divided among the multiprocessors."""

import pytest

from clotho_trainer.inference.paged.added_projection import columns_for


@pytest.mark.parametrize(("width", "ranks", "columns"), [(4096, 64, 64), (4096, 128, 64), (8192, 64, 128)])
def test_every_multiprocessor_has_one_program_at_most(width: int, ranks: int, columns: int) -> None:
    assert columns_for(width, ranks, 132) == columns


@pytest.mark.parametrize("width", [1024, 2560, 16384])
def test_layers_that_leave_many_idle_or_need_more_are_left_to_other_kernels(width: int) -> None:
    assert columns_for(width, 64, 132) is None


def test_columns_are_divided_without_a_rest() -> None:
    assert columns_for(4128, 0, 132) is None
