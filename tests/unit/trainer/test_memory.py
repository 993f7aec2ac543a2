"""How memory is divided, and whether activations are kept."""

import pytest

from clotho_trainer.inference.core.block_manager import BlockManager, NoFreeBlocksError
from clotho_trainer.inference.paged import memory
from clotho_trainer.training.local.passes import Plan, plan

GIB = 2**30


@pytest.mark.parametrize(
    ("total", "rows", "tokens", "trainable", "blocks"),
    [
        (100 * GIB, 4, 200, 1, 4 * 2 + 1),  # a full batch and the null block
        (2 * GIB, 1000, 1000, 1, 409 + 1),  # what two fifths of the rest hold
        (2 * GIB, 1000, 1000, 0, 819 + 1),  # twice as much where nothing is trained
        (GIB // 1000, 4, 1000, 1, 8 + 1),  # never less than one sequence
    ],
)
def test_the_cache_holds_a_full_batch_if_it_fits(
    total: int, rows: int, tokens: int, trainable: int, blocks: int
) -> None:
    budget = memory.divide(
        total=total,
        used=total // 2,
        trainable=trainable,
        bytes_per_token=8192,
        rows=rows,
        tokens_a_row=tokens,
        block_size=128,
    )
    assert budget.blocks == blocks
    assert budget.used + budget.optimizer + budget.cache + budget.activations == total


def test_the_memory_budget_is_logged_in_one_line() -> None:
    budget = memory.Budget(100 * GIB, 20 * GIB, 2 * GIB, 30 * GIB, 80, 128)
    assert str(budget) == (
        "100.0 GiB: 20.0 weights, 2.0 optimiser, 30.0 key-value cache of 10240 tokens, 48.0 activations"
    )


@pytest.mark.parametrize(
    ("fixed", "free", "expected"),
    [
        (None, 24 * GIB, Plan(keeps_activations=True, tokens=17_408)),
        (None, 16 * GIB, Plan(keeps_activations=True, tokens=8_704)),
        (None, 8 * GIB, Plan(keeps_activations=False, tokens=17_408)),
        (1000, 8 * GIB, Plan(keeps_activations=True, tokens=1000)),
        (20_000, 24 * GIB, Plan(keeps_activations=False, tokens=20_000)),
    ],
)
def test_activations_are_kept_when_they_fit(fixed: int | None, free: int, expected: Plan) -> None:
    assert plan(fixed_tokens=fixed, kept_bytes_per_token=2**20, free=free) == expected


def test_a_block_is_free_when_its_last_owner_frees_it() -> None:
    blocks = BlockManager(4, block_size=16)
    mine = blocks.allocate(2)
    blocks.share(mine[:1])
    blocks.free(mine)
    assert blocks.free_count == 2
    blocks.free(mine[:1])
    assert sorted(blocks.allocate(3)) == [1, 2, 3]
    with pytest.raises(NoFreeBlocksError):
        blocks.allocate(1)
