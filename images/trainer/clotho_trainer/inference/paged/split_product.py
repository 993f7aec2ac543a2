"""A product of a few rows for Hopper, of which each of two multiprocessors adds up half of the sum, and in the end
completes half of the rows.

It streams the weights (`streaming.py`). Each weight is read by one of the two, where halves of the rows
(`halved_product.py`) take each through the shared memory of both: long sums are bound by that. The adapter's B are more
columns of the same product. x A' is not brought together: each of a pair multiplies B with its own part of it.
"""

# ruff: noqa: N803, N806 - kernels' constants are written in capitals
# mypy: ignore-errors

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from clotho_trainer.inference.paged.streaming import (
    IN_BOTH,
    IN_HALVES,
    ONCE,
    PAIR,
    RANKS_DEEP,
    RANKS_EACH,
    SPLIT,
    WIDTH,
    await_flag,
    depth_of,
    make_barriers,
    tiles_of,
    turn,
)

WARPS = 4  # that multiply
_MEMORY = 230_000  # bytes of a multiprocessor, for what is on its way and for what comes from the other one
_OF_A_SUM = 4  # bytes
# A warp writes eight columns of four rows of its sums at once, two rows apart.
_SPLIT_SUMS, _ALL_SUMS, _HALF_OF_SUMS = (
    gl.constexpr(gl.SwizzledSharedLayout(8, 2, 8, [1, 0], cga_layout=each)) for each in (SPLIT, IN_BOTH, IN_HALVES)
)


@gluon.constexpr_function
def _operand_layout(rows, depth, kind, is_left):
    """Of what each multiprocessor multiplies, which is what it has of tiles: to the compiler, the rows of both are the
    left operand, and the right one is the same for both."""
    return gl.NVMMASharedLayout.get_default_for([rows, depth], kind, cga_layout=IN_HALVES if is_left else IN_BOTH)


@gluon.jit
def _left(tiles, rows: gl.constexpr, depth: gl.constexpr, kind: gl.constexpr, COUNT: gl.constexpr):
    return tiles.reinterpret(kind, [COUNT, 2 * rows, depth], _operand_layout(2 * rows, depth, kind, True))


@gluon.jit
def _right(tiles, rows: gl.constexpr, depth: gl.constexpr, kind: gl.constexpr, COUNT: gl.constexpr):
    return tiles.reinterpret(kind, [COUNT, rows, depth], _operand_layout(rows, depth, kind, False))


@gluon.jit
def allocate(x, down_tiles, below, source, up, STAGES: gl.constexpr):
    """Where x, x A', A, W and B of each stage lie, as they come and as they are multiplied, and its barriers; and where
    both bring together what they have added up."""
    kind: gl.constexpr = x.dtype
    of_up: gl.constexpr = up.dtype
    ROWS: gl.constexpr = x.block_shape[0]
    DEPTH: gl.constexpr = x.block_shape[1]
    COLUMNS: gl.constexpr = source.block_shape[0]
    EACH: gl.constexpr = below.block_shape[0]
    PIECES: gl.constexpr = STAGES * COLUMNS // EACH
    xs = gl.allocate_shared_memory(kind, [STAGES, ROWS, DEPTH], x.layout)
    weights = gl.allocate_shared_memory(kind, [STAGES, COLUMNS, DEPTH], source.layout)
    downs = xs.reinterpret(of_up, [STAGES, 2 * ROWS, RANKS_DEEP], down_tiles.layout)
    pieces = weights.reinterpret(kind, [PIECES, EACH, DEPTH], below.layout)
    ups = weights.reinterpret(of_up, [STAGES, COLUMNS, RANKS_DEEP], up.layout)
    HALF: gl.constexpr = DEPTH // 2
    of_ranks = (_left(xs, ROWS, HALF, kind, STAGES), _right(pieces, EACH, HALF, kind, PIECES))
    of_base = (_left(weights, COLUMNS, HALF, kind, STAGES), _right(xs, ROWS, HALF, kind, STAGES))
    of_adapter = (_left(ups, COLUMNS, RANKS_DEEP, of_up, STAGES), _right(downs, ROWS, RANKS_DEEP, of_up, STAGES))
    received = gl.allocate_shared_memory(gl.float32, [ROWS, COLUMNS], _HALF_OF_SUMS)
    own = xs.reinterpret(gl.float32, [ROWS, 2 * COLUMNS], _SPLIT_SUMS)  # after the last product
    as_own = xs.reinterpret(gl.float32, [ROWS, COLUMNS], _ALL_SUMS)
    filled = (xs, downs, pieces, weights, ups)
    ring = (make_barriers(STAGES), make_barriers(STAGES), None)  # of each stage: it is filled, it has been used
    arrived, taken = make_barriers(1).index(0), make_barriers(1).index(0)
    hopper.fence_async_shared(cluster=True)
    gl.barrier(cluster=True)  # each of a pair reaches for barriers of the other
    return ring, filled, (of_ranks, of_base, of_adapter), ((own, as_own), received, arrived, taken)


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
    full, done, _ = ring
    xs, downs, weights, ups = filled
    DEPTH: gl.constexpr = x.block_shape[1]
    EACH: gl.constexpr = weights.shape[0] // STAGES
    BYTES: gl.constexpr = x.nbytes_per_cta + source.nbytes_per_cta
    for stage in gl.static_range(STAGES):
        mbarrier.expect(full.index(stage), BYTES)
        tma.async_load(source, [row, stage * DEPTH], full.index(stage), weights.index(EACH * stage), cache_policy=ONCE)
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    for stage in gl.static_range(STAGES):
        tma.async_load(x, [0, stage * DEPTH], full.index(stage), xs.index(stage))
    stage = 0
    phase = 0
    for step in range(STAGES, hidden // DEPTH):
        mbarrier.wait(done.index(stage), phase)
        mbarrier.expect(full.index(stage), BYTES)
        tma.async_load(source, [row, step * DEPTH], full.index(stage), weights.index(EACH * stage), cache_policy=ONCE)
        tma.async_load(x, [0, step * DEPTH], full.index(stage), xs.index(stage))
        stage, phase = turn(stage, phase, STAGES)
    if RANKS > 0:
        ready, readers = flag
        for step in range(RANKS // RANKS_DEEP):
            mbarrier.wait(done.index(stage), phase)
            mbarrier.expect(full.index(stage), down.nbytes_per_cta + up.nbytes_per_cta)
            tma.async_load(up, [row, step * RANKS_DEEP], full.index(stage), ups.index(stage))
            if step == 0:
                await_flag(ready, readers, 2 * (RANKS // RANKS_EACH))
            tma.async_load(down, [0, step * RANKS_DEEP], full.index(stage), downs.index(stage))
            stage, phase = turn(stage, phase, STAGES)


@gluon.jit
def join(total, sums, like: gl.constexpr):
    """What both have added up, of half of the rows each."""
    (own, as_own), received, arrived, taken = sums
    mbarrier.expect(arrived, received.nbytes_per_cta)
    gl.barrier()  # other warps may still multiply what lies there
    own.store(total.permute((1, 0)))
    hopper.fence_async_shared()
    gl.barrier()
    _send(own, received, arrived)
    mbarrier.wait(arrived, 0, deps=[received])
    _tell(taken)
    return as_own.load(like) + received.load(like)


@gluon.jit
def _send(own, received, arrived):
    """The other of the pair what it has to complete: its half of the rows. Descriptors come as addresses in the first
    of the pair."""
    gl.inline_asm(
        """{
            .reg .pred first;
            .reg .u32 thread, this, other, source, target, barrier;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            mov.u32 this, %cluster_ctarank;
            xor.b32 other, this, 1;
            mapa.shared::cluster.u32 source, $0, this;
            mad.lo.u32 source, other, $3, source;
            mapa.shared::cluster.u32 target, $1, other;
            mapa.shared::cluster.u32 barrier, $2, other;
            @first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
                [target], [source], $3, [barrier];
        }""",
        "r,r,r,r",
        [own, received, arrived, received.nbytes_per_cta],
    )


@gluon.jit
def _tell(barrier):
    """The other of the pair, by one thread."""
    gl.inline_asm(
        """{
            .reg .pred first;
            .reg .u32 thread, other, target;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            mov.u32 other, %cluster_ctarank;
            xor.b32 other, other, 1;
            mapa.shared::cluster.u32 target, $0, other;
            @first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [target];
        }""",
        "r",
        [barrier],
    )


@gluon.jit
def finish(sums):
    """What this one has sent has to be there before its memory is given away."""
    mbarrier.wait(sums[3], 0)


def tiles(
    x: torch.Tensor,
    store: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    rows: int,
    columns: int,
    ranks_each: int,
):
    """Of x, x A', A, W and B; B's are any where there are no adapters."""
    depth = PAIR * depth_of(x.dtype)
    return (
        tiles_of(x, rows, SPLIT, depth),
        tiles_of(down, PAIR * rows, IN_HALVES),
        tiles_of(store, ranks_each, SPLIT, depth),
        tiles_of(store, columns, SPLIT, depth),
        tiles_of(up if up.numel() else down, columns, IN_BOTH),
    )


def ranks_each(rank: int) -> int:
    """Ranks that a program fetches: the others wait for it, and fewer are there sooner."""
    return 32 if rank <= 32 else RANKS_EACH.value


def stages(rows: int, columns: int, hidden: int, kind: torch.dtype) -> int:
    """As much is on its way as fits into a multiprocessor."""
    received = rows // PAIR * columns * _OF_A_SUM
    return min((_MEMORY - received) // ((rows + columns) * WIDTH), hidden // (PAIR * depth_of(kind)))
