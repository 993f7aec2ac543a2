"""How the gate and up projections are divided among the multiprocessors."""

import pytest

from clotho_trainer.inference.paged.gated_projection import columns_for


@pytest.mark.parametrize(
    ("inner", "ranks", "columns"),
    [(12288, 64, (64, 32)), (9728, 64, (64, 32)), (6144, 64, (32, 16)), (14336, 64, (128, 0)), (12288, 128, (64, 32))],
)
def test_every_multiprocessor_has_one_program_at_most(inner: int, ranks: int, columns: tuple[int, int]) -> None:
    assert columns_for(inner, ranks, 132) == columns


@pytest.mark.parametrize("inner", [3072, 25600])
def test_layers_that_leave_many_idle_or_need_more_are_left_to_other_kernels(inner: int) -> None:
    assert columns_for(inner, 64, 132) is None


def test_programs_for_the_adapters_count() -> None:
    assert columns_for(12288, 192, 132) == (128, 0)
