"""The query, key and value projections of a few rows with their adapters, norms and rotation, in one kernel for Hopper
that also writes keys and values to the cache.

Two multiprocessors share a head (`halved_product.py`); each has half of the rows, and so whole heads to normalise and
to rotate.
"""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from clotho_trainer.inference.paged.cache import LayerCache
from clotho_trainer.inference.paged.halved_product import (
    WARPS,
    allocate,
    fetch,
    stages,
    tiles,
)
from clotho_trainer.inference.paged.heads import finish, halves, read_tables
from clotho_trainer.inference.paged.linear import Rows, Weighed
from clotho_trainer.inference.paged.streaming import (
    PAIR,
    RANKS_DEEP,
    RANKS_EACH,
    ROWS,
    add_all,
    factors_of,
    is_streamable,
    no_sums,
    produce,
    reduce_ranks,
    row_factors,
)
from clotho_trainer.inference.paged.weights import Layer, PolicyWeights
from clotho_trainer.model.launching import launch


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
    used,
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
    of_ranks, of_base, of_adapter = used
    steps = HIDDEN // of_base[0].shape[2]
    program = gl.program_id(0)
    PROGRAMS: gl.constexpr = RANKS // RANKS_EACH
    if program < PROGRAMS:
        reduce_ranks(down, scale, program * RANKS_EACH, ready, ring, of_ranks, steps, RANKS, STAGES)
    else:
        head = program - PROGRAMS
        total = no_sums(of_adapter)
        layout: gl.constexpr = total.type.layout
        factor = row_factors(factors, rows, epsilon, total.shape[0], HIDDEN, STRETCHES, layout)
        like, _ = halves(total)
        turning = read_tables(head, rows, tables, norms, like, QUERY_HEADS, HAS_NORMS)
        total = add_all(of_base, of_adapter, ring, scale, steps, RANKS, STAGES) * factor[:, None]
        finish(total, turning, head, rows, places, epsilon, QUERY_HEADS, KV_HEADS, BLOCK_SIZE, HAS_NORMS)


@gluon.jit(do_not_specialize=["rows"])
def _project_and_rotate(
    x,
    down_tiles,
    below,
    source,
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
    ring, filled, used = allocate(x, down_tiles, below, source, up, STAGES)
    read = (x, down_tiles, below, source, up)
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
                    used,
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
                produce,
                (fetch, read, (ready, readers), width, ring, filled, HIDDEN, RANKS, DIM, STAGES),
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
        launch(
            _project_and_rotate,
            (ranks // RANKS_EACH.value + heads.count,),
            *tiles(x.values, store, up, down, heads.dim),
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
            num_warps=WARPS,
            num_ctas=PAIR,
            launch_pdl=True,
        )
        return queries


def prepare(weights: PolicyWeights) -> RotatedProjection | None:
    """None where the GPU or the shape of the layers is not fit for it: other kernels are better then."""
    linear = weights.layers[0].qkv
    if weights.head_dim not in (64, 128) or not is_streamable(linear):
        return None
    ranks = len(linear.streamed.store) - linear.width
    busy = PAIR * (linear.width // weights.head_dim + ranks // RANKS_EACH.value)
    multiprocessors = torch.cuda.get_device_properties(weights.device).multi_processor_count
    return RotatedProjection(weights) if busy <= multiprocessors < 2 * busy else None


def constants(
    heads: Heads, hidden: int, ranks: int, block_size: int, kind: torch.dtype, *, has_norms: bool
) -> dict[str, int]:
    """Of the kernel."""
    return {
        "HIDDEN": hidden,
        "RANKS": ranks,
        "DIM": heads.dim,
        "QUERY_HEADS": heads.queries,
        "KV_HEADS": heads.kv,
        "BLOCK_SIZE": block_size,
        "HAS_NORMS": has_norms,
        "STAGES": stages(heads.dim, hidden, kind),
    }
