"""A product of a few rows for Hopper, of which each of two multiprocessors has half of the rows: they share what they
read of the weights, and have whole rows of a stretch of columns at its end.

It streams the weights (`streaming.py`); the adapter's B are more columns of the same product.
"""

# ruff: noqa: N803, N806 - kernels' constants are written in capitals
# mypy: ignore-errors

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from clotho_trainer.inference.paged.streaming import (
    IN_BOTH,
    IN_HALVES,
    MEMORY,
    ONCE,
    PAIR,
    RANKS_DEEP,
    RANKS_EACH,
    ROWS,
    WIDTH,
    await_flag,
    depth_of,
    make_barriers,
    tiles_of,
    turn,
)

WARPS = 4  # that multiply


@gluon.jit
def allocate(x, down_tiles, below, source, up, STAGES: gl.constexpr):
    """Where x, x A', W, A and B of each stage lie, in pairs as they are multiplied as well, and its barriers."""
    kind: gl.constexpr = x.dtype
    DEPTH: gl.constexpr = x.block_shape[1]
    COLUMNS: gl.constexpr = source.block_shape[0]
    EACH: gl.constexpr = below.block_shape[0]
    xs = gl.allocate_shared_memory(kind, [STAGES, x.block_shape[0], DEPTH], x.layout)
    downs = xs.reinterpret(up.dtype, [STAGES, x.block_shape[0], RANKS_DEEP], down_tiles.layout)
    weights = gl.allocate_shared_memory(kind, [STAGES, COLUMNS, DEPTH], source.layout)
    pieces = weights.reinterpret(kind, [STAGES, EACH, DEPTH], below.layout)
    ups = weights.reinterpret(up.dtype, [STAGES, COLUMNS, RANKS_DEEP], up.layout)
    # Of each stage: it is filled; this multiprocessor has used it; both have.
    full, mine, both = make_barriers(STAGES), make_barriers(STAGES), make_barriers(STAGES, of_both=True)
    filled = (xs, downs, pieces, weights, ups)
    return (full, mine, both), filled, ((xs, pieces), (xs, weights), (downs, ups))


@gluon.jit
def fetch(
    tiles,
    row,
    flag,
    ring,
    filled,
    hidden,
    RANKS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Weights and x. The first weights do not depend on the kernel before this one."""
    x, down, source, up = tiles
    full, mine, both = ring
    xs, downs, weights, ups = filled
    DEPTH: gl.constexpr = x.block_shape[1]
    BYTES: gl.constexpr = x.nbytes_per_cta + source.nbytes_per_cta
    for stage in gl.static_range(STAGES):
        mbarrier.expect(full.index(stage), BYTES)
        tma.async_load(
            source, [row, stage * DEPTH], full.index(stage), weights.index(stage), multicast=True, cache_policy=ONCE
        )
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    for stage in gl.static_range(STAGES):
        tma.async_load(x, [0, stage * DEPTH], full.index(stage), xs.index(stage))
    stage = 0
    phase = 0
    for step in range(STAGES, hidden // DEPTH):
        mbarrier.wait(mine.index(stage), phase)
        mbarrier.expect(full.index(stage), BYTES)
        tma.async_load(x, [0, step * DEPTH], full.index(stage), xs.index(stage))
        mbarrier.wait(both.index(stage), phase)  # only the first of a pair waits, which alone loads weights
        tma.async_load(
            source, [row, step * DEPTH], full.index(stage), weights.index(stage), multicast=True, cache_policy=ONCE
        )
        stage, phase = turn(stage, phase, STAGES)
    if RANKS > 0:
        ready, readers = flag
        await_flag(ready, readers, 2 * (RANKS // RANKS_EACH))
        for step in range(RANKS // RANKS_DEEP):
            mbarrier.wait(mine.index(stage), phase)
            mbarrier.expect(full.index(stage), BYTES)
            tma.async_load(down, [0, step * RANKS_DEEP], full.index(stage), downs.index(stage))
            mbarrier.wait(both.index(stage), phase)
            tma.async_load(up, [row, step * RANKS_DEEP], full.index(stage), ups.index(stage), multicast=True)
            stage, phase = turn(stage, phase, STAGES)


def tiles(x: torch.Tensor, store: torch.Tensor, up: torch.Tensor, down: torch.Tensor, columns: int):
    """Of x, x A', A, W and B; B's are any where there are no adapters."""
    return (
        tiles_of(x, ROWS, IN_HALVES),
        tiles_of(down, ROWS, IN_HALVES),
        tiles_of(store, RANKS_EACH.value, IN_BOTH),
        tiles_of(store, columns, IN_BOTH),
        tiles_of(up if up.numel() else down, columns, IN_BOTH),
    )


def stages(columns: int, hidden: int, kind: torch.dtype) -> int:
    """As much is on its way as fits into a multiprocessor."""
    return min(MEMORY // ((ROWS // PAIR + columns) * WIDTH), hidden // depth_of(kind))
