"""The query, key and value projections of a few rows with their adapters, norms and rotation, in one kernel for Hopper
that also writes keys and values to the cache.

It streams the weights (`streaming.py`). Two multiprocessors share a head, so that they share what they read of the
weights; each has half of the rows, and so whole heads to normalise and to rotate.
"""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

from typing import NamedTuple

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from clotho_trainer.inference.paged.cache import LayerCache
from clotho_trainer.inference.paged.heads import finish, halves, read_tables
from clotho_trainer.inference.paged.linear import Rows
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
    Weighed,
    await_flag,
    depth_of,
    factors_of,
    hand_over,
    is_streamable,
    make_barriers,
    row_factors,
    tiles_of,
    turn,
)
from clotho_trainer.inference.paged.weights import Layer, PolicyWeights

_WARPS = 4  # that multiply


@gluon.jit
def _fetch(
    tiles,
    row,
    flag,
    ring,
    filled,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Weights and x. The first weights do not depend on the kernel before this one."""
    x, down, source, up = tiles
    xs, full, mine, both = ring
    weights, downs, ups = filled
    DEPTH: gl.constexpr = x.block_shape[1]
    STEPS: gl.constexpr = HIDDEN // DEPTH
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
    for step in range(STAGES, STEPS):
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


@gluon.constexpr_function
def _product_layout(columns, kind, warps):
    return gl.NVMMADistributedLayout(
        [3, 0], [warps, 1], [16, columns, 256 // kind.primitive_bitwidth], cga_layout=[[1, 0]]
    )


@gluon.jit
def _add_products(
    total,
    xs,
    weights,
    barriers,
    place,
    FIRST: gl.constexpr,
    LAST: gl.constexpr,
    STEPS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Of these steps, and what has been reached. A stage is given back when its products have ended."""
    full, mine, both = barriers
    stage, phase, before = place
    for step in range(FIRST, LAST):
        mbarrier.wait(full.index(stage), phase)
        one = hopper.warpgroup_mma(xs.index(stage), weights.index(stage).permute((1, 0)), total, is_async=True)
        total = hopper.warpgroup_mma_wait(1, deps=[one])
        is_wanted = (step > 0) & (step <= STEPS - STAGES)
        mbarrier.arrive(mine.index(before), pred=is_wanted)
        mbarrier.arrive(both.index(before), pred=is_wanted)
        before = stage
        stage, phase = turn(stage, phase, STAGES)
    return hopper.warpgroup_mma_wait(0, deps=[total]), (stage, phase, before)


@gluon.jit
def _reduce(down, scale, first, ready, ring, pieces, HIDDEN: gl.constexpr, RANKS: gl.constexpr, STAGES: gl.constexpr):
    """x A', of as many ranks as a program has."""
    xs, full, mine, both = ring
    STEPS: gl.constexpr = HIDDEN // xs.shape[2]
    total = gl.zeros([xs.shape[1], RANKS_EACH], gl.float32, _product_layout(RANKS_EACH, xs.dtype, gl.num_warps()))
    total, _ = _add_products(total, xs, pieces, (full, mine, both), (0, 0, 0), 0, STEPS, STEPS, STAGES)
    if scale is not None:
        total *= gl.load(scale)
    hand_over(total, down, first, ready, RANKS)


@gluon.jit
def _multiply(ring, weights, scale, HIDDEN: gl.constexpr, RANKS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr):
    """One head, with its adapter."""
    xs, full, mine, both = ring
    base, downs, ups = weights
    OF_BASE: gl.constexpr = HIDDEN // xs.shape[2]
    STEPS: gl.constexpr = OF_BASE + RANKS // RANKS_DEEP
    barriers = (full, mine, both)
    start = (0, 0, 0)
    total = gl.zeros([xs.shape[1], DIM], gl.float32, _product_layout(DIM, xs.dtype, gl.num_warps()))
    if scale is None:
        total, _ = _add_products(total, xs, base, barriers, start, 0, STEPS, STEPS, STAGES)
    else:
        total, place = _add_products(total, xs, base, barriers, start, 0, OF_BASE, STEPS, STAGES)
        total = gl.convert_layout(
            total * gl.load(scale), _product_layout(DIM, downs.dtype, gl.num_warps()), assert_trivial=True
        )
        if RANKS > 0:
            total, _ = _add_products(total, downs, ups, barriers, place, OF_BASE, STEPS, STEPS, STAGES)
    return total


@gluon.jit
def _produce(
    tiles,
    flag,
    width,
    ring,
    pieces,
    filled,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    """One warp."""
    x, down, below, source, up = tiles
    _, downs, ups = filled
    program = gl.program_id(0)
    PROGRAMS: gl.constexpr = RANKS // RANKS_EACH
    if program < PROGRAMS:
        of_adapter = (x, down, below, up)
        _fetch(of_adapter, width + program * RANKS_EACH, flag, ring, (pieces, downs, ups), HIDDEN, 0, STAGES)
    else:
        of_head = (x, down, source, up)
        _fetch(of_head, (program - PROGRAMS) * DIM, flag, ring, filled, HIDDEN, RANKS, STAGES)


@gluon.jit
def _consume(
    down,
    ready,
    completion,
    rows,
    tables,
    places,
    norms,
    ring,
    pieces,
    weights,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    DIM: gl.constexpr,
    QUERY_HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    HAS_NORMS: gl.constexpr,
    STRETCHES: gl.constexpr,
    STAGES: gl.constexpr,
):
    factors, epsilon, scale = completion
    program = gl.program_id(0)
    PROGRAMS: gl.constexpr = RANKS // RANKS_EACH
    if program < PROGRAMS:
        _reduce(down, scale, program * RANKS_EACH, ready, ring, pieces, HIDDEN, RANKS, STAGES)
    else:
        head = program - PROGRAMS
        layout: gl.constexpr = _product_layout(DIM, places[0].dtype.element_ty, gl.num_warps())
        factor = row_factors(factors, rows, epsilon, ring[0].shape[1], HIDDEN, STRETCHES, layout)
        like, _ = halves(gl.zeros([ring[0].shape[1], DIM], gl.float32, layout))
        turning = read_tables(head, rows, tables, norms, like, QUERY_HEADS, HAS_NORMS)
        total = _multiply(ring, weights, scale, HIDDEN, RANKS, DIM, STAGES) * factor[:, None]
        finish(total, turning, head, rows, places, epsilon, QUERY_HEADS, KV_HEADS, BLOCK_SIZE, HAS_NORMS)


@gluon.jit(do_not_specialize=["rows"])
def _project_and_rotate(
    x,
    down_tiles,
    source,
    below,
    up,
    down,
    ready,
    factors,
    scale,
    cos,
    sin,
    positions,
    slots,
    queries,
    keys,
    key_scales,
    values,
    value_scales,
    query_norm,
    key_norm,
    rows,
    width,
    readers,
    epsilon,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    DIM: gl.constexpr,
    QUERY_HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    HAS_NORMS: gl.constexpr,
    STRETCHES: gl.constexpr,
    STAGES: gl.constexpr,
):
    """A program is a pair of multiprocessors, with one head, or with some ranks of x A'."""
    kind: gl.constexpr = x.dtype
    DEPTH: gl.constexpr = x.block_shape[1]
    xs = gl.allocate_shared_memory(kind, [STAGES, x.block_shape[0], DEPTH], x.layout)
    downs = xs.reinterpret(up.dtype, [STAGES, x.block_shape[0], RANKS_DEEP], down_tiles.layout)
    weights = gl.allocate_shared_memory(kind, [STAGES, DIM, DEPTH], source.layout)
    pieces = weights.reinterpret(kind, [STAGES * DIM // RANKS_EACH, RANKS_EACH, DEPTH], below.layout)
    ups = weights.reinterpret(up.dtype, [STAGES, DIM, RANKS_DEEP], up.layout)
    full, mine, both = make_barriers(STAGES)
    ring = (xs, full, mine, both)
    tiles = (x, down_tiles, below, source, up)
    held = (weights, downs, ups)
    tables = (cos, sin, positions, slots)
    places = (queries, (keys, key_scales), (values, value_scales))
    completion = (factors, epsilon, scale)
    norms = (query_norm, key_norm)
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    down,
                    ready,
                    completion,
                    rows,
                    tables,
                    places,
                    norms,
                    ring,
                    pieces,
                    held,
                    HIDDEN,
                    RANKS,
                    DIM,
                    QUERY_HEADS,
                    KV_HEADS,
                    BLOCK_SIZE,
                    HAS_NORMS,
                    STRETCHES,
                    STAGES,
                ),
            ),
            (
                _produce,
                (tiles, (ready, readers), width, ring, pieces, held, HIDDEN, RANKS, DIM, STAGES),
            ),
        ],
        [1],
        [24],
    )


class Heads(NamedTuple):
    queries: int
    kv: int
    dim: int

    @property
    def count(self) -> int:
        return self.queries + 2 * self.kv


class RotatedProjection:
    """Of 128 rows at most, with any layer of this shape."""

    def __init__(self, weights: PolicyWeights) -> None:
        self._weights = weights
        self._heads = Heads(weights.query_heads, weights.kv_heads, weights.head_dim)
        self._flags = torch.zeros(2, dtype=torch.int32, device=weights.device)

    def __call__(self, x: Weighed | Rows, layer: Layer, positions, slots, cache: LayerCache) -> torch.Tensor:
        """The queries. The flags are 0 before and after."""
        w, heads = self._weights, self._heads
        store, up, scale = layer.qkv.streamed
        rows, hidden = x.values.shape
        ranks = len(store) - layer.qkv.width
        queries = up.new_empty(rows, heads.queries * heads.dim)
        down = up.new_empty(ROWS, ranks or RANKS_DEEP.value)
        norms = (queries, queries) if layer.query_norm is None else (layer.query_norm, layer.key_norm)
        factors, stretches = factors_of(x)
        _project_and_rotate[(ranks // RANKS_EACH.value + heads.count,)](
            tiles_of(x.values, ROWS, IN_HALVES),
            tiles_of(down, ROWS, IN_HALVES),
            tiles_of(store, heads.dim, IN_BOTH),
            tiles_of(store, RANKS_EACH.value, IN_BOTH),
            tiles_of(up if ranks else down, heads.dim, IN_BOTH),
            down,
            self._flags,
            factors,
            scale,
            w.cos,
            w.sin,
            positions,
            slots,
            queries,
            *cache.keys,
            *cache.values,
            *norms,
            rows,
            layer.qkv.width,
            PAIR * heads.count,
            w.epsilon,
            **constants(
                heads, hidden, ranks, cache.keys.block_size, x.values.dtype, has_norms=layer.query_norm is not None
            ),
            STRETCHES=stretches,
            num_warps=_WARPS,
            num_ctas=PAIR,
            launch_pdl=True,
        )
        return queries


def prepare(weights: PolicyWeights) -> RotatedProjection | None:
    """None where the GPU or the shape of the layers is not fit for it: other kernels are better then."""
    linear = weights.layers[0].qkv
    if weights.head_dim not in (64, 128) or not is_streamable(linear, least_tiles=1):
        return None
    ranks = len(linear.streamed.store) - linear.width
    busy = PAIR * (linear.width // weights.head_dim + ranks // RANKS_EACH.value)
    multiprocessors = torch.cuda.get_device_properties(weights.device).multi_processor_count
    return RotatedProjection(weights) if busy <= multiprocessors < 2 * busy else None


def constants(
    heads: Heads, hidden: int, ranks: int, block_size: int, kind: torch.dtype, *, has_norms: bool
) -> dict[str, int]:
    """Of the kernel. As much is on its way as fits into a multiprocessor."""
    stages = min(MEMORY // ((ROWS // PAIR + heads.dim) * WIDTH), hidden // depth_of(kind))
    return {
        "HIDDEN": hidden,
        "RANKS": ranks,
        "DIM": heads.dim,
        "QUERY_HEADS": heads.queries,
        "KV_HEADS": heads.kv,
        "BLOCK_SIZE": block_size,
        "HAS_NORMS": has_norms,
        "STAGES": stages,
    }
