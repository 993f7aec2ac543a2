"""How memory is divided, and which layers keep their activations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clotho_trainer.inference.core.block_manager import BlockManager, NoFreeBlocksError
from clotho_trainer.inference.paged import memory
from clotho_trainer.training.local.passes import ActivationMemory

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


def activations(budget: float, kept: float = 32 * 1024) -> ActivationMemory:
    return ActivationMemory(layers=32, budget=budget, kept_bytes=kept, input_bytes=2 * 1024)


@given(
    budget=st.floats(1, 200 * GIB),
    kept=st.floats(4096, 1e6),
    tokens=st.integers(1, 200_000),
)
def test_no_more_layers_recompute_than_the_budget_asks_for(budget: float, kept: float, tokens: int) -> None:
    memory_of_pass = activations(budget, kept)

    def needed(recomputed: int) -> float:
        """With the gradients within one layer."""
        return tokens * ((32 - recomputed + 1) * kept + recomputed * 2 * 1024)

    recomputed = memory_of_pass.recomputed_layers(tokens)
    assert recomputed == 32 or needed(recomputed) <= budget * (1 + 1e-9)
    assert recomputed == 0 or needed(recomputed - 1) >= budget * (1 - 1e-9)


@pytest.mark.parametrize(
    ("memory_of_pass", "recomputed"),
    [(ActivationMemory(32), 0), (ActivationMemory(32, budget=0.0), 32), (activations(0.0), 32)],
)
def test_what_the_config_decides_holds_for_every_length(memory_of_pass: ActivationMemory, recomputed: int) -> None:
    assert [memory_of_pass.recomputed_layers(tokens) for tokens in (1, 1_000_000)] == [recomputed, recomputed]


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [
        (40 * GIB, 17_408),
        (12 * GIB, 8_704),
        (6 * GIB, 4_352),
        (3 * GIB, 4_352),  # some layers recompute, fewer than in a larger pass
        (GIB // 10, 17_408),  # all do, in whatever pass
    ],
)
def test_a_pass_is_as_large_as_possible_without_recomputing(budget: int, tokens: int) -> None:
    assert activations(budget).best_pass() == tokens


def test_passes_show_what_layers_really_keep() -> None:
    found = activations(30 * GIB, kept=100_000)
    found.measure(1_000, recomputed=0, held=1)
    assert found.kept_bytes == 100_000, "too few tokens to tell"
    found.measure(8_000, recomputed=12, held=8_000 * (20 * 50_000 + 12 * 2 * 1024))
    assert found.kept_bytes == 50_000
    found.measure(4_000, recomputed=0, held=4_000 * 32 * 70_000)
    assert found.kept_bytes == 50_000, "a larger pass was measured before"
    found.measure(16_000, recomputed=31, held=16_000 * 31 * 200_000)
    assert found.kept_bytes == 50_000, "what belongs to no layer would count for the only one that kept anything"


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
