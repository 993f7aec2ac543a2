"""The gate and up projections of a few rows with their adapters and the gating, in one kernel for Hopper.

It streams the weights (`streaming.py`); two multiprocessors share what they read of the rows.
"""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from clotho_trainer.inference.paged.linear import FusedLinear, Rows, Streamed, Weighed
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
    choose,
    factors_of,
    hand_over,
    is_streamable,
    make_barriers,
    new_rows,
    row_factors,
    tile_rows,
    tiles_of,
    turn,
)
from clotho_trainer.model.launching import launch

_ROWS_OF_A_WARP = 16


class Columns(NamedTuple):
    """Of a multiprocessor, as many gates and as many of what they gate; in two pieces, as sizes are powers of two."""

    wide: int
    narrow: int

    @property
    def count(self) -> int:
        return self.wide + self.narrow


_CHOICES = (Columns(32, 16), Columns(64, 32), Columns(128, 0))


def columns_for(inner: int, ranks: int, multiprocessors: int) -> Columns | None:
    of_ranks = ranks // RANKS_EACH.value
    busy = {columns: PAIR * (triton.cdiv(inner, PAIR * columns.count) + of_ranks) for columns in _CHOICES}
    return choose(busy, multiprocessors)


@gluon.jit
def _load(tiles, weights, row, inner, depth, full, stage, NARROW: gl.constexpr):
    """Gates, and below them what they gate."""
    wide, narrow = tiles
    wides, narrows = weights
    tma.async_load(wide, [row, depth], full.index(stage), wides.index(2 * stage), cache_policy=ONCE)
    tma.async_load(wide, [inner + row, depth], full.index(stage), wides.index(2 * stage + 1), cache_policy=ONCE)
    if NARROW > 0:
        row += wide.block_shape[0]
        tma.async_load(narrow, [row, depth], full.index(stage), narrows.index(2 * stage), cache_policy=ONCE)
        tma.async_load(narrow, [inner + row, depth], full.index(stage), narrows.index(2 * stage + 1), cache_policy=ONCE)


@gluon.jit
def _load_either(tiles, weights, row, inner, depth, full, stage, NARROW: gl.constexpr, REDUCES: gl.constexpr):
    """Of W, or of A."""
    below, whole = tiles
    pieces, halves = weights
    if REDUCES:
        EACH: gl.constexpr = pieces.shape[0] // full.shape[0]
        tma.async_load(below, [2 * inner + row, depth], full.index(stage), pieces.index(EACH * stage))
    else:
        _load(whole, halves, row, inner, depth, full, stage, NARROW)


@gluon.jit
def _fetch(
    tiles,
    row,
    inner,
    flag,
    ring,
    weights,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    NARROW: gl.constexpr,
    STAGES: gl.constexpr,
    REDUCES: gl.constexpr,
):
    """Weights and x. The first weights do not depend on the kernel before this one."""
    x, down, base, up = tiles
    xs, full, mine, both = ring
    of_base, downs, of_up = weights
    DEPTH: gl.constexpr = x.block_shape[1]
    STEPS: gl.constexpr = HIDDEN // DEPTH
    below, (wide, narrow) = base
    OF_NARROW: gl.constexpr = narrow.nbytes_per_cta if NARROW > 0 else 0
    OF_WEIGHTS: gl.constexpr = below.nbytes_per_cta if REDUCES else 2 * (wide.nbytes_per_cta + OF_NARROW)
    BYTES: gl.constexpr = x.nbytes_per_cta + OF_WEIGHTS
    for stage in gl.static_range(STAGES):
        mbarrier.expect(full.index(stage), BYTES)
        _load_either(base, of_base, row, inner, stage * DEPTH, full, stage, NARROW, REDUCES)
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    for stage in gl.static_range(STAGES):
        tma.async_load(x, [0, stage * DEPTH], full.index(stage), xs.index(stage), multicast=True)
    stage = 0
    phase = 0
    for step in range(STAGES, STEPS):
        mbarrier.wait(mine.index(stage), phase)
        mbarrier.expect(full.index(stage), BYTES)
        _load_either(base, of_base, row, inner, step * DEPTH, full, stage, NARROW, REDUCES)
        mbarrier.wait(both.index(stage), phase)  # only the first of a pair waits, which alone loads x
        tma.async_load(x, [0, step * DEPTH], full.index(stage), xs.index(stage), multicast=True)
        stage, phase = turn(stage, phase, STAGES)
    if RANKS > 0:
        ready, readers = flag
        await_flag(ready, readers, 2 * (RANKS // RANKS_EACH))
        for step in range(RANKS // RANKS_DEEP):
            mbarrier.wait(mine.index(stage), phase)
            mbarrier.expect(full.index(stage), BYTES)
            _load(up, of_up, row, inner, step * RANKS_DEEP, full, stage, NARROW)
            mbarrier.wait(both.index(stage), phase)
            tma.async_load(down, [0, step * RANKS_DEEP], full.index(stage), downs.index(stage), multicast=True)
            stage, phase = turn(stage, phase, STAGES)


@gluon.jit
def _reduce(down, scale, first, ready, ring, pieces, HIDDEN: gl.constexpr, RANKS: gl.constexpr, STAGES: gl.constexpr):
    """x A', of as many ranks as a program has."""
    xs, full, mine, both = ring
    EACH: gl.constexpr = pieces.shape[0] // STAGES
    STEPS: gl.constexpr = HIDDEN // xs.shape[2]
    layout: gl.constexpr = _product_layout(RANKS_EACH // 2, xs.dtype, gl.num_warps())
    total = gl.zeros([xs.shape[1], RANKS_EACH], gl.float32, layout)
    stage = 0
    phase = 0
    for step in range(STEPS):
        mbarrier.wait(full.index(stage), phase)
        total = hopper.warpgroup_mma(xs.index(stage), pieces.index(EACH * stage).permute((1, 0)), total)
        mbarrier.arrive(mine.index(stage), pred=step < STEPS - STAGES)
        mbarrier.arrive(both.index(stage), pred=step < STEPS - STAGES)
        stage, phase = turn(stage, phase, STAGES)
    if scale is not None:
        total *= gl.load(scale)
    hand_over(total, down, first, ready, RANKS)


@gluon.constexpr_function
def _product_layout(columns, kind, warps):
    """Of the columns of one multiprocessor."""
    return gl.NVMMADistributedLayout(
        [3, 0], [warps, 1], [16, columns, 256 // kind.primitive_bitwidth], cga_layout=[[0, 1]]
    )


@gluon.jit
def _store_gated(out, total, first, rows, inner, COLUMNS: gl.constexpr):
    """`total` has, for each of the pair, gates and then what they gate. Rounded where the modules round."""
    ROWS: gl.constexpr = total.shape[0]
    kind: gl.constexpr = out.dtype.element_ty
    halves = total.reshape([ROWS, 2, 2, COLUMNS]).permute([0, 1, 3, 2]).reshape([ROWS, 2 * COLUMNS, 2])
    gate, times = gl.split(halves)
    wide = gate.to(kind).to(gl.float32)
    active = (wide / (1.0 + gl.exp(-wide))).to(kind).to(gl.float32)
    gated = (active * times.to(kind).to(gl.float32)).to(kind)
    VECTOR: gl.constexpr = 8
    LANES: gl.constexpr = COLUMNS // VECTOR
    layout: gl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0], cga_layout=[[0, 1]]
    )
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = first + gl.arange(0, 2 * COLUMNS, gl.SliceLayout(0, layout))
    inside = (row < rows)[:, None] & (column < inner)[None, :]
    gl.store(out + row[:, None] * inner + column[None, :], gl.convert_layout(gated, layout), mask=inside)


@gluon.jit
def _add_products(
    sums,
    xs,
    weights,
    barriers,
    place,
    FIRST: gl.constexpr,
    LAST: gl.constexpr,
    STEPS: gl.constexpr,
    NARROW: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Of these steps, and what has been reached. A stage is given back when its products have ended."""
    total, more = sums
    wides, narrows = weights
    full, mine, both = barriers
    stage, phase, before = place
    for step in range(FIRST, LAST):
        mbarrier.wait(full.index(stage), phase)
        one = hopper.warpgroup_mma(xs.index(stage), wides.index(stage).permute((1, 0)), total, is_async=True)
        if NARROW > 0:
            two = hopper.warpgroup_mma(xs.index(stage), narrows.index(stage).permute((1, 0)), more, is_async=True)
            total, more = hopper.warpgroup_mma_wait(2, deps=[one, two])
        else:
            total = hopper.warpgroup_mma_wait(1, deps=[one])
        is_wanted = (step > 0) & (step <= STEPS - STAGES)
        mbarrier.arrive(mine.index(before), pred=is_wanted)
        mbarrier.arrive(both.index(before), pred=is_wanted)
        before = stage
        stage, phase = turn(stage, phase, STAGES)
    if NARROW > 0:
        total, more = hopper.warpgroup_mma_wait(0, deps=[total, more])
    else:
        total = hopper.warpgroup_mma_wait(0, deps=[total])
    return (total, more), (stage, phase, before)


@gluon.jit
def _multiply(
    out,
    first,
    completion,
    sizes,
    ring,
    weights,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    WIDE: gl.constexpr,
    NARROW: gl.constexpr,
    STRETCHES: gl.constexpr,
    STAGES: gl.constexpr,
):
    xs, full, mine, both = ring
    base, downs, ups = weights
    ROWS: gl.constexpr = xs.shape[1]
    OF_BASE: gl.constexpr = HIDDEN // xs.shape[2]
    STEPS: gl.constexpr = OF_BASE + RANKS // RANKS_DEEP
    MORE: gl.constexpr = NARROW if NARROW > 0 else 8
    wide_layout: gl.constexpr = _product_layout(2 * WIDE, xs.dtype, gl.num_warps())
    narrow_layout: gl.constexpr = _product_layout(2 * MORE, xs.dtype, gl.num_warps())
    rows, inner = sizes
    factors, epsilon, scale = completion
    factor = row_factors(factors, rows, epsilon, ROWS, HIDDEN, STRETCHES, wide_layout)
    total = gl.zeros([ROWS, 4 * WIDE], gl.float32, wide_layout)
    more = gl.zeros([ROWS, 4 * MORE], gl.float32, narrow_layout)
    barriers = (full, mine, both)
    sums = (total, more)
    start = (0, 0, 0)
    if scale is None:
        sums, _ = _add_products(sums, xs, base, barriers, start, 0, STEPS, STEPS, NARROW, STAGES)
    else:
        sums, place = _add_products(sums, xs, base, barriers, start, 0, OF_BASE, STEPS, NARROW, STAGES)
        by = gl.load(scale)
        if RANKS > 0:
            wide_ups: gl.constexpr = _product_layout(2 * WIDE, downs.dtype, gl.num_warps())
            narrow_ups: gl.constexpr = _product_layout(2 * MORE, downs.dtype, gl.num_warps())
            total = gl.convert_layout(sums[0] * by, wide_ups, assert_trivial=True)
            more = gl.convert_layout(sums[1] * by, narrow_ups, assert_trivial=True)
            sums, _ = _add_products((total, more), downs, ups, barriers, place, OF_BASE, STEPS, STEPS, NARROW, STAGES)
        else:
            factor *= by
    total, more = sums
    if NARROW > 0:
        same = gl.convert_layout(factor, gl.SliceLayout(1, more.type.layout), assert_trivial=True)
        _store_gated(out, more * same[:, None], first + 2 * WIDE, rows, inner, NARROW)
    factor = gl.convert_layout(factor, gl.SliceLayout(1, total.type.layout), assert_trivial=True)
    _store_gated(out, total * factor[:, None], first, rows, inner, WIDE)


@gluon.jit
def _produce(
    tiles,
    flag,
    inner,
    ring,
    weights,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    WIDE: gl.constexpr,
    NARROW: gl.constexpr,
    STAGES: gl.constexpr,
):
    """One warp."""
    program = gl.program_id(0)
    PROGRAMS: gl.constexpr = RANKS // RANKS_EACH
    if program < PROGRAMS:
        _fetch(tiles, program * RANKS_EACH, inner, flag, ring, weights, HIDDEN, 0, NARROW, STAGES, True)
    else:
        gate = (program - PROGRAMS) * 2 * (WIDE + NARROW)
        _fetch(tiles, gate, inner, flag, ring, weights, HIDDEN, RANKS, NARROW, STAGES, False)


@gluon.jit
def _consume(
    down,
    ready,
    completion,
    out,
    sizes,
    ring,
    pieces,
    weights,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    WIDE: gl.constexpr,
    NARROW: gl.constexpr,
    STRETCHES: gl.constexpr,
    STAGES: gl.constexpr,
):
    program = gl.program_id(0)
    PROGRAMS: gl.constexpr = RANKS // RANKS_EACH
    if program < PROGRAMS:
        _reduce(down, completion[2], program * RANKS_EACH, ready, ring, pieces, HIDDEN, RANKS, STAGES)
    else:
        first = (program - PROGRAMS) * 2 * (WIDE + NARROW)
        _multiply(out, first, completion, sizes, ring, weights, HIDDEN, RANKS, WIDE, NARROW, STRETCHES, STAGES)


@gluon.jit(do_not_specialize=["rows"])
def _project_and_gate(
    x,
    down_tiles,
    below,
    wide,
    narrow,
    wide_up,
    narrow_up,
    down,
    ready,
    factors,
    scale,
    out,
    rows,
    inner,
    readers,
    epsilon,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    WIDE: gl.constexpr,
    NARROW: gl.constexpr,
    STRETCHES: gl.constexpr,
    STAGES: gl.constexpr,
):
    """A program is a pair of multiprocessors, with gates and what they gate, or with some ranks of x A'."""
    kind: gl.constexpr = x.dtype
    of_up: gl.constexpr = wide_up.dtype
    DEPTH: gl.constexpr = x.block_shape[1]
    xs = gl.allocate_shared_memory(kind, [STAGES, x.block_shape[0], DEPTH], x.layout)
    downs = xs.reinterpret(of_up, [STAGES, x.block_shape[0], RANKS_DEEP], down_tiles.layout)
    wides = gl.allocate_shared_memory(kind, [STAGES, 4 * WIDE, DEPTH], wide.layout)
    wide_pieces = wides.reinterpret(kind, [2 * STAGES, 2 * WIDE, DEPTH], wide.layout)
    pieces = wides.reinterpret(kind, [STAGES * 4 * WIDE // RANKS_EACH, RANKS_EACH, DEPTH], below.layout)
    wide_ups = wides.reinterpret(of_up, [STAGES, 4 * WIDE, RANKS_DEEP], wide_up.layout)
    wide_up_pieces = wides.reinterpret(of_up, [2 * STAGES, 2 * WIDE, RANKS_DEEP], wide_up.layout)
    narrows = wides
    narrow_pieces = wide_pieces
    narrow_ups = wide_ups
    narrow_up_pieces = wide_up_pieces
    if NARROW > 0:
        narrows = gl.allocate_shared_memory(kind, [STAGES, 4 * NARROW, DEPTH], narrow.layout)
        narrow_pieces = narrows.reinterpret(kind, [2 * STAGES, 2 * NARROW, DEPTH], narrow.layout)
        narrow_ups = narrows.reinterpret(of_up, [STAGES, 4 * NARROW, RANKS_DEEP], narrow_up.layout)
        narrow_up_pieces = narrows.reinterpret(of_up, [2 * STAGES, 2 * NARROW, RANKS_DEEP], narrow_up.layout)
    # Of each stage: it is filled; this multiprocessor has used it; both have.
    full, mine, both = make_barriers(STAGES), make_barriers(STAGES), make_barriers(STAGES, of_both=True)
    tiles = (x, down_tiles, (below, (wide, narrow)), (wide_up, narrow_up))
    flag = (ready, readers)
    ring = (xs, full, mine, both)
    used = ((wides, narrows), downs, (wide_ups, narrow_ups))
    filled = ((pieces, (wide_pieces, narrow_pieces)), downs, (wide_up_pieces, narrow_up_pieces))
    sizes = (rows, inner)
    completion = (factors, epsilon, scale)
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    down,
                    ready,
                    completion,
                    out,
                    sizes,
                    ring,
                    pieces,
                    used,
                    HIDDEN,
                    RANKS,
                    WIDE,
                    NARROW,
                    STRETCHES,
                    STAGES,
                ),
            ),
            (_produce, (tiles, flag, inner, ring, filled, HIDDEN, RANKS, WIDE, NARROW, STAGES)),
        ],
        [1],
        [24],
    )


def prepare(linear: FusedLinear, epsilon: float) -> Callable[[Weighed | Rows, Streamed], torch.Tensor] | None:
    """What computes silu(x G') * (x U'), each with its adapter, of 128 rows at most with any layer of this shape; None
    where other kernels are better."""
    if not is_streamable(linear, least=16):
        return None
    inner, device = linear.width // 2, linear.streamed.store.device
    ranks = len(linear.streamed.store) - linear.width
    columns = columns_for(inner, ranks, torch.cuda.get_device_properties(device).multi_processor_count)
    if columns is None:
        return None
    flags = torch.zeros(2, dtype=torch.int32, device=device)
    return lambda x, layer: _gated(x, layer, inner, epsilon, columns, flags)


def _gated(
    x: Weighed | Rows,
    layer: Streamed,
    inner: int,
    epsilon: float,
    columns: Columns,
    flags: torch.Tensor,
) -> torch.Tensor:
    """The layer is [[G], [U], [A]] and [[sB, 0], [0, sB]]. The flags are 0 before and after."""
    store, up, scale = layer
    rows, hidden = x.values.shape
    ranks = len(store) - 2 * inner
    pairs = triton.cdiv(inner, PAIR * columns.count)
    out = new_rows(x.values, inner, up.dtype)
    each = tile_rows(rows)
    down = up.new_empty(ROWS, ranks) if ranks else up.new_empty(ROWS, RANKS_DEEP.value)
    factors, stretches = factors_of(x)
    wide, narrow = PAIR * columns.wide, PAIR * (columns.narrow or columns.wide)
    launch(
        _project_and_gate,
        (ranks // RANKS_EACH.value + pairs,),
        tiles_of(x.values, each, IN_BOTH),
        tiles_of(down, each, IN_BOTH),
        tiles_of(store, RANKS_EACH.value, IN_HALVES),
        *(tiles_of(store, count, IN_HALVES) for count in (wide, narrow)),
        *(tiles_of(up if ranks else down, count, IN_HALVES) for count in (wide, narrow)),
        down,
        flags,
        factors,
        scale,
        out,
        rows,
        inner,
        PAIR * pairs,
        epsilon,
        **constants(columns, hidden, ranks, each),
        STRETCHES=stretches,
        num_warps=warps(each),
        num_ctas=PAIR,
        launch_pdl=True,
    )
    return out


def warps(rows: int) -> int:
    """That multiply."""
    return rows // _ROWS_OF_A_WARP


def constants(columns: Columns, hidden: int, ranks: int, rows: int) -> dict[str, int]:
    """Of the kernel. As much is on its way as fits into a multiprocessor."""
    stages = MEMORY // ((rows + 2 * columns.count) * WIDTH)
    return {"HIDDEN": hidden, "RANKS": ranks, "WIDE": columns.wide, "NARROW": columns.narrow, "STAGES": stages}
