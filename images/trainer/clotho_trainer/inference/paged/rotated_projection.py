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
from clotho_trainer.inference.paged.streaming import (
    DEPTH,
    IN_BOTH,
    IN_HALVES,
    KIND,
    MEMORY,
    ONCE,
    PAIR,
    RANKS_EACH,
    ROWS,
    Weighed,
    await_flag,
    hand_over,
    make_barriers,
    norm_factors,
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
    weights,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Weights and x. The first weights do not depend on the kernel before this one."""
    x, down, source = tiles
    xs, full, mine, both = ring
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
        for step in range(RANKS // DEPTH):
            mbarrier.wait(mine.index(stage), phase)
            mbarrier.expect(full.index(stage), BYTES)
            tma.async_load(down, [0, step * DEPTH], full.index(stage), xs.index(stage))
            mbarrier.wait(both.index(stage), phase)
            tma.async_load(
                source, [row, (STEPS + step) * DEPTH], full.index(stage), weights.index(stage), multicast=True
            )
            stage, phase = turn(stage, phase, STAGES)


@gluon.constexpr_function
def _product_layout(columns, warps):
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, columns, 16], cga_layout=[[1, 0]])


@gluon.jit
def _multiply(ring, weights, STEPS: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr):
    xs, full, mine, both = ring
    layout: gl.constexpr = _product_layout(COLUMNS, gl.num_warps())
    total = gl.zeros([xs.shape[1], COLUMNS], gl.float32, layout)
    stage = 0
    phase = 0
    before = 0
    for step in range(STEPS):
        mbarrier.wait(full.index(stage), phase)
        one = hopper.warpgroup_mma(xs.index(stage), weights.index(stage).permute((1, 0)), total, is_async=True)
        total = hopper.warpgroup_mma_wait(1, deps=[one])
        is_wanted = (step > 0) & (step <= STEPS - STAGES)
        mbarrier.arrive(mine.index(before), pred=is_wanted)  # its products have ended
        mbarrier.arrive(both.index(before), pred=is_wanted)
        before = stage
        stage, phase = turn(stage, phase, STAGES)
    return hopper.warpgroup_mma_wait(0, deps=[total])


@gluon.jit
def _reduce(down, first, ready, ring, pieces, HIDDEN: gl.constexpr, RANKS: gl.constexpr, STAGES: gl.constexpr):
    """x A', of as many ranks as a program has."""
    total = _multiply(ring, pieces, HIDDEN // DEPTH, RANKS_EACH, STAGES)
    hand_over(total, down, first, ready, RANKS)


@gluon.jit
def _halves(total):
    return gl.split(total.reshape([total.shape[0], 2, total.shape[1] // 2]).permute([0, 2, 1]))


@gluon.jit
def _turning(head, rows, tables, norms, like, QUERY_HEADS: gl.constexpr, HAS_NORMS: gl.constexpr):
    """What the end of the product needs, read while the product has not begun: of each row the slot, cosines and sines,
    and the norm of the head; `like` is half of a head."""
    cos, sin, positions, slots = tables
    query_norm, key_norm = norms
    HALF: gl.constexpr = like.shape[1]
    row = gl.arange(0, like.shape[0], gl.SliceLayout(1, like.type.layout))
    half = gl.arange(0, HALF, gl.SliceLayout(0, like.type.layout))
    is_row = row < rows
    slot = gl.load(slots + row, mask=is_row, other=0).to(gl.int64)
    place = gl.load(positions + row, mask=is_row, other=0).to(gl.int64)[:, None] * HALF + half[None, :]
    c = gl.load(cos + place, mask=is_row[:, None], other=0.0)
    s = gl.load(sin + place, mask=is_row[:, None], other=0.0)
    left = half
    right = half
    if HAS_NORMS:
        norm = query_norm if head < QUERY_HEADS else key_norm
        left = gl.load(norm + half)
        right = gl.load(norm + HALF + half)
    return slot, c, s, left, right


@gluon.jit
def _normalised(first, second, left, right, epsilon, kind: gl.constexpr):
    HALF: gl.constexpr = first.shape[1]
    factor = 1.0 / gl.sqrt((gl.sum(first * first, 1) + gl.sum(second * second, 1)) / (2 * HALF) + epsilon)
    first = (first * factor[:, None]).to(kind).to(gl.float32) * left.to(gl.float32)[None, :]
    second = (second * factor[:, None]).to(kind).to(gl.float32) * right.to(gl.float32)[None, :]
    return first.to(kind).to(gl.float32), second.to(kind).to(gl.float32)


@gluon.jit
def _rotated(first, second, cos, sin, kind: gl.constexpr):
    c = cos.to(gl.float32)
    s = sin.to(gl.float32)
    turned = (first * c).to(kind).to(gl.float32) - (second * s).to(kind).to(gl.float32)
    return turned, (second * c).to(kind).to(gl.float32) + (first * s).to(kind).to(gl.float32)


@gluon.jit
def _store(first, second, content, head, rows):
    """`head` is that of each row. Many columns lie in one thread, so that few stores are enough."""
    HALF: gl.constexpr = first.shape[1]
    VECTOR: gl.constexpr = 8
    LANES: gl.constexpr = HALF // VECTOR
    layout: gl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0], cga_layout=[[1, 0]]
    )
    row = gl.arange(0, first.shape[0], gl.SliceLayout(1, layout))
    half = gl.arange(0, HALF, gl.SliceLayout(0, layout))
    head = gl.convert_layout(head, gl.SliceLayout(1, layout))
    target = content + head[:, None] * (2 * HALF) + half[None, :]
    kind: gl.constexpr = content.dtype.element_ty
    gl.store(target, gl.convert_layout(first.to(kind), layout), mask=(row < rows)[:, None])
    gl.store(target + HALF, gl.convert_layout(second.to(kind), layout), mask=(row < rows)[:, None])


@gluon.jit
def _finish(
    total,
    turning,
    head,
    rows,
    places,
    epsilon,
    QUERY_HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    HAS_NORMS: gl.constexpr,
):
    """A head of each row. Rounded where the modules round."""
    queries, keys, values = places
    slot, cos, sin, left, right = turning
    kind: gl.constexpr = queries.dtype.element_ty
    first, second = _halves(total.to(kind).to(gl.float32))
    if head < QUERY_HEADS + KV_HEADS:
        if HAS_NORMS:
            first, second = _normalised(first, second, left, right, epsilon, kind)
        first, second = _rotated(first, second, cos, sin, kind)
    row = gl.arange(0, total.shape[0], gl.SliceLayout(1, first.type.layout)).to(gl.int64)
    token = (slot // BLOCK_SIZE) * KV_HEADS * BLOCK_SIZE + slot % BLOCK_SIZE  # in the first head of its block
    if head < QUERY_HEADS:
        _store(first, second, queries, row * QUERY_HEADS + head, rows)
    elif head < QUERY_HEADS + KV_HEADS:
        _store(first, second, keys, token + (head - QUERY_HEADS) * BLOCK_SIZE, rows)
    else:
        _store(first, second, values, token + (head - QUERY_HEADS - KV_HEADS) * BLOCK_SIZE, rows)


@gluon.jit
def _produce(
    x,
    down,
    source,
    below,
    flag,
    width,
    ring,
    weights,
    pieces,
    HIDDEN: gl.constexpr,
    RANKS: gl.constexpr,
    DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    """One warp."""
    program = gl.program_id(0)
    PROGRAMS: gl.constexpr = RANKS // RANKS_EACH
    if program < PROGRAMS:
        _fetch((x, down, below), width + program * RANKS_EACH, flag, ring, pieces, HIDDEN, 0, STAGES)
    else:
        _fetch((x, down, source), (program - PROGRAMS) * DIM, flag, ring, weights, HIDDEN, RANKS, STAGES)


@gluon.jit
def _consume(
    down,
    ready,
    squares,
    rows,
    tables,
    places,
    norms,
    epsilon,
    ring,
    weights,
    pieces,
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
    program = gl.program_id(0)
    PROGRAMS: gl.constexpr = RANKS // RANKS_EACH
    if program < PROGRAMS:
        _reduce(down, program * RANKS_EACH, ready, ring, pieces, HIDDEN, RANKS, STAGES)
    else:
        head = program - PROGRAMS
        layout: gl.constexpr = _product_layout(DIM, gl.num_warps())
        factor = norm_factors(squares, epsilon, ring[0].shape[1], HIDDEN, STRETCHES, layout)
        like, _ = _halves(gl.zeros([ring[0].shape[1], DIM], gl.float32, layout))
        turning = _turning(head, rows, tables, norms, like, QUERY_HEADS, HAS_NORMS)
        total = _multiply(ring, weights, (HIDDEN + RANKS) // DEPTH, DIM, STAGES) * factor[:, None]
        _finish(total, turning, head, rows, places, epsilon, QUERY_HEADS, KV_HEADS, BLOCK_SIZE, HAS_NORMS)


@gluon.jit(do_not_specialize=["rows"])
def _project_and_rotate(
    x,
    down_tiles,
    source,
    below,
    down,
    ready,
    squares,
    cos,
    sin,
    positions,
    slots,
    queries,
    keys,
    values,
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
    xs = gl.allocate_shared_memory(kind, [STAGES, x.block_shape[0], DEPTH], x.layout)
    weights = gl.allocate_shared_memory(kind, [STAGES, DIM, DEPTH], source.layout)
    pieces = weights.reinterpret(kind, [STAGES * DIM // RANKS_EACH, RANKS_EACH, DEPTH], below.layout)
    full, mine, both = make_barriers(STAGES)
    ring = (xs, full, mine, both)
    tables = (cos, sin, positions, slots)
    places = (queries, keys, values)
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    down,
                    ready,
                    squares,
                    rows,
                    tables,
                    places,
                    (query_norm, key_norm),
                    epsilon,
                    ring,
                    weights,
                    pieces,
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
                (
                    x,
                    down_tiles,
                    source,
                    below,
                    (ready, readers),
                    width,
                    ring,
                    weights,
                    pieces,
                    HIDDEN,
                    RANKS,
                    DIM,
                    STAGES,
                ),
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

    def __call__(self, weighed: Weighed, layer: Layer, positions, slots, cache: LayerCache) -> torch.Tensor:
        """The queries. The flags are 0 before and after."""
        x, squares = weighed
        w, heads, whole = self._weights, self._heads, layer.qkv.whole
        rows, hidden = x.shape
        ranks = len(whole) - layer.qkv.width
        queries = x.new_empty(rows, heads.queries * heads.dim)
        down = x.new_empty(ROWS, ranks) if ranks else x
        norms = (x, x) if layer.query_norm is None else (layer.query_norm, layer.key_norm)
        _project_and_rotate[(ranks // RANKS_EACH.value + heads.count,)](
            tiles_of(x, ROWS, IN_HALVES),
            tiles_of(down, ROWS, IN_HALVES),
            tiles_of(whole, heads.dim, IN_BOTH),
            tiles_of(whole, RANKS_EACH.value, IN_BOTH),
            down,
            self._flags,
            squares,
            w.cos,
            w.sin,
            positions,
            slots,
            queries,
            cache.keys.content,
            cache.values.content,
            *norms,
            rows,
            layer.qkv.width,
            PAIR * heads.count,
            w.epsilon,
            **constants(heads, hidden, ranks, cache.keys.block_size, has_norms=layer.query_norm is not None),
            STRETCHES=len(squares),
            num_warps=_WARPS,
            num_ctas=PAIR,
            launch_pdl=True,
        )
        return queries


def prepare(weights: PolicyWeights) -> RotatedProjection | None:
    """None where the GPU or the shape of the layers is not fit for it: other kernels are better then."""
    linear = weights.layers[0].qkv
    device = torch.cuda.get_device_properties(weights.device)
    ranks = len(linear.whole) - linear.width
    hidden = linear.whole.shape[1] - ranks
    has_tiles = linear.whole.dtype == KIND and weights.head_dim in (64, 128) and not hidden % DEPTH.value
    busy = PAIR * (linear.width // weights.head_dim + ranks // RANKS_EACH.value)
    is_fit = device.major == 9 and has_tiles and busy <= device.multi_processor_count < 2 * busy
    return RotatedProjection(weights) if is_fit else None


def constants(heads: Heads, hidden: int, ranks: int, block_size: int, *, has_norms: bool) -> dict[str, int]:
    """Of the kernel. As much is on its way as fits into a multiprocessor."""
    stages = min(MEMORY // ((ROWS // PAIR + heads.dim) * DEPTH.value * KIND.itemsize), hidden // DEPTH.value)
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
