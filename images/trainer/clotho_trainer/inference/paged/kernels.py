"""The engine's operations as Triton kernels. They round where the plain ones do and differ only in summation order."""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

from functools import cached_property

import torch
import triton
import triton.language as tl

from clotho_trainer.inference.paged import (
    added_projection,
    attention,
    gated_projection,
    rotated_projection,
    sampling,
    stepping,
    streaming,
)
from clotho_trainer.inference.paged.cache import LayerCache
from clotho_trainer.inference.paged.device_rows import DeviceRows
from clotho_trainer.inference.paged.linear import FusedLinear, Rows, Weighed
from clotho_trainer.inference.paged.sharing import SharedPrompts
from clotho_trainer.inference.paged.weights import Layer, PolicyWeights
from clotho_trainer.model import rounding
from clotho_trainer.model.fp8 import FP8
from clotho_trainer.model.launching import OVERLAPPING, follow, follow_closely, launch
from clotho_trainer.model.rounding import store_rounded

_ROTATED_ROWS = 16  # the matrix unit takes no fewer
_ADDED = {"ROWS": 32, "BLOCK": 64, "num_warps": 4}
_WEIGHED = {"ROWS": 16, "BLOCK": 256, "num_warps": 4}  # as many programs as there are multiprocessors, for 128 rows
_COLUMNS = 64  # of a program


@triton.jit
def _add_and_norm(
    residual,
    addition,
    addition_stride,
    addition_scales,
    weight,
    out,
    scales,
    hidden,
    epsilon,
    BLOCK: tl.constexpr,
):
    follow()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    x = tl.load(residual + row * hidden + column, mask=inside, other=0.0)
    kind = x.dtype
    if addition is not None:
        more = tl.load(addition + row * addition_stride + column, mask=inside, other=0.0).to(tl.float32)
        if addition_scales is not None:
            more = (more * tl.load(addition_scales + row)).to(kind).to(tl.float32)
        x = (x.to(tl.float32) + more).to(kind)
        tl.store(residual + row * hidden + column, x, mask=inside)
    wide = x.to(tl.float32)
    normed = (wide * (1.0 / tl.sqrt(tl.sum(wide * wide, 0) / hidden + epsilon))).to(kind)
    result = (tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) * normed.to(tl.float32)).to(kind)
    if scales is not None:
        store_rounded(result.to(tl.float32), row, hidden, column, inside, out, scales)
    else:
        tl.store(out + row * hidden + column, result, mask=inside)


@triton.jit
def _load_sum(values, part_stride, inside, PARTS: tl.constexpr):
    found = tl.load(values, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        found += tl.load(values + part * part_stride, mask=inside, other=0.0)
    return found


@triton.jit
def _load_completed(product, OPEN: tl.constexpr, kind: tl.constexpr, row, is_row, column, inside, module):
    """Columns of one module, of some rows: with what its adapter adds to them, and scaled. See `Rows` and `Up`."""
    values, part_stride, stride, scales, up, up_stride, width = product
    PARTS: tl.constexpr = OPEN[0]
    RANKS: tl.constexpr = OPEN[1]
    STEP: tl.constexpr = OPEN[2]
    COPIES: tl.constexpr = OPEN[3]
    COPY: tl.constexpr = OPEN[4]
    values += row[:, None] * stride
    total = _load_sum(values + column[None, :], part_stride, is_row[:, None] & inside[None, :], PARTS).to(tl.float32)
    if RANKS > 0:
        CHUNK: tl.constexpr = min(64, RANKS & -RANKS)
        for copy in tl.static_range(COPIES):
            for first in tl.static_range(0, RANKS, CHUNK):
                rank = copy * COPY + module * STEP + first + tl.arange(0, CHUNK)
                down = _load_sum(values + width + rank[None, :], part_stride, is_row[:, None], PARTS).to(kind)
                factors = tl.load(up + column[:, None] * up_stride + rank[None, :], mask=inside[:, None], other=0.0)
                total += tl.dot(down, tl.trans(factors), input_precision="ieee")
    if scales is not None:
        total = total.to(kind).to(tl.float32) * tl.load(scales + row, mask=is_row, other=0.0)[:, None]
    return total.to(kind)


@triton.jit(do_not_specialize=["rows"])
def _add(
    residual,
    values,
    part_stride,
    stride,
    scales,
    up,
    up_stride,
    weight,
    out,
    squares,
    squares_stride,
    rows,
    hidden,
    OPEN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program is a stretch of some rows. What a norm needs is written as well if it is left to the end of the next
    product: see `Weighed`."""
    follow_closely()
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row, inside = row < rows, column < hidden
    place, seen = row[:, None] * hidden + column[None, :], is_row[:, None] & inside[None, :]
    kind: tl.constexpr = residual.dtype.element_ty
    x = tl.load(residual + place, mask=seen, other=0.0)
    if values is not None:
        product = (values, part_stride, stride, scales, up, up_stride, hidden)
        more = _load_completed(product, OPEN, kind, row, is_row, column, inside, 0)
        x = (x.to(tl.float32) + more.to(tl.float32)).to(kind)
        tl.store(residual + place, x, mask=seen)
    if weight is not None:
        wide = x.to(tl.float32)
        weighed = wide * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        tl.store(out + place, weighed.to(kind), mask=seen)
        tl.store(squares + row * squares_stride + tl.program_id(1), tl.sum(wide * wide, 1), mask=is_row)


@triton.jit
def _store_heads(first, second, token, is_row, content, scales, DIM: tl.constexpr):
    """One head of some tokens, in two halves, into the cache."""
    half = tl.arange(0, first.shape[1])
    inside = is_row[:, None] & (half < DIM // 2)[None, :]
    if scales is not None:
        first, second = first.to(tl.float32), second.to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        scale = tl.maximum(largest, 1e-12) / 448.0
        tl.store(scales + token, scale, mask=is_row)
        first, second = first / scale[:, None], second / scale[:, None]
    target = content + token[:, None] * DIM + half[None, :]
    tl.store(target, first.to(content.dtype.element_ty), mask=inside)
    tl.store(target + DIM // 2, second.to(content.dtype.element_ty), mask=inside)


@triton.jit
def _normalised(first, second, norm, half, inside, epsilon, DIM: tl.constexpr):
    kind = first.dtype
    a, b = first.to(tl.float32), second.to(tl.float32)
    factor = 1.0 / tl.sqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / DIM + epsilon)
    left = tl.load(norm + half, mask=inside, other=0.0).to(tl.float32)[None, :]
    right = tl.load(norm + DIM // 2 + half, mask=inside, other=0.0).to(tl.float32)[None, :]
    a = (a * factor[:, None]).to(kind).to(tl.float32) * left
    b = (b * factor[:, None]).to(kind).to(tl.float32) * right
    return a.to(kind), b.to(kind)


@triton.jit
def _rotated(first, second, cos, sin, position, half, inside, DIM: tl.constexpr):
    kind = first.dtype
    a, b = first.to(tl.float32), second.to(tl.float32)
    place = position[:, None] * (DIM // 2) + half[None, :]
    c = tl.load(cos + place, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + place, mask=inside, other=0.0).to(tl.float32)
    turned = ((a * c).to(kind).to(tl.float32) - (b * s).to(kind).to(tl.float32)).to(kind)
    return turned, ((b * c).to(kind).to(tl.float32) + (a * s).to(kind).to(tl.float32)).to(kind)


@triton.jit(do_not_specialize=["rows"])
def _rotate_and_store(
    qkv,
    part_stride,
    stride,
    scales,
    up,
    up_stride,
    query_norm,
    key_norm,
    cos,
    sin,
    positions,
    slots,
    queries,
    keys,
    key_scales,
    values,
    value_scales,
    rows,
    epsilon,
    OPEN: tl.constexpr,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A program is one head of some tokens; the heads are the queries', the keys' and the values', in this order."""
    follow()
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    is_row = row < rows
    HALF: tl.constexpr = max(16, DIM // 2)  # the matrix unit takes no fewer columns
    WIDTH: tl.constexpr = (QUERY_HEADS + 2 * KV_HEADS) * DIM
    half = tl.arange(0, HALF)
    inside = half < DIM // 2
    module = (head >= QUERY_HEADS).to(tl.int32) + (head >= QUERY_HEADS + KV_HEADS).to(tl.int32)
    kind: tl.constexpr = queries.dtype.element_ty
    product = (qkv, part_stride, stride, scales, up, up_stride, WIDTH)
    first = _load_completed(product, OPEN, kind, row, is_row, head * DIM + half, inside, module)
    second = _load_completed(product, OPEN, kind, row, is_row, head * DIM + DIM // 2 + half, inside, module)
    slot = tl.load(slots + row, mask=is_row, other=0).to(tl.int64)
    token = (slot // BLOCK_SIZE) * KV_HEADS * BLOCK_SIZE + slot % BLOCK_SIZE  # in the first head of its block
    if head >= QUERY_HEADS + KV_HEADS:
        token += (head - QUERY_HEADS - KV_HEADS) * BLOCK_SIZE
        _store_heads(first, second, token, is_row, values, value_scales, DIM)
    else:
        if query_norm is not None:
            norm = query_norm if head < QUERY_HEADS else key_norm
            first, second = _normalised(first, second, norm, half, inside, epsilon, DIM)
        position = tl.load(positions + row, mask=is_row, other=0).to(tl.int64)
        seen = is_row[:, None] & inside[None, :]
        first, second = _rotated(first, second, cos, sin, position, half, seen, DIM)
        if head < QUERY_HEADS:
            _store_heads(first, second, row * QUERY_HEADS + head, is_row, queries, None, DIM)
        else:
            token += (head - QUERY_HEADS) * BLOCK_SIZE
            _store_heads(first, second, token, is_row, keys, key_scales, DIM)


@triton.jit(do_not_specialize=["rows"])
def _gated(
    gate_up,
    part_stride,
    stride,
    scales,
    up,
    up_stride,
    out,
    rows,
    inner,
    OPEN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program is a stretch of some rows."""
    follow()
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row, inside = row < rows, column < inner
    kind: tl.constexpr = out.dtype.element_ty
    product = (gate_up, part_stride, stride, scales, up, up_stride, 2 * inner)
    gate = _load_completed(product, OPEN, kind, row, is_row, column, inside, 0)
    times = _load_completed(product, OPEN, kind, row, is_row, inner + column, inside, 1)
    wide = gate.to(tl.float32)
    active = (wide / (1.0 + tl.exp(-wide))).to(kind).to(tl.float32)
    target = out + row[:, None] * inner + column[None, :]
    tl.store(target, (active * times.to(tl.float32)).to(kind), mask=is_row[:, None] & inside[None, :])


class TritonOperations:
    """The same operations as `PlainOperations`, fit to be captured in a CUDA graph."""

    def __init__(self, weights: PolicyWeights) -> None:
        self._weights = weights

    @cached_property
    def _gated_projection(self):
        """Both projections and the gating in one kernel, where the GPU and the shape of the layers are fit for it."""
        return gated_projection.prepare(self._weights.layers[0].gate_up, self._weights.epsilon)

    @cached_property
    def _rotated_projection(self):
        """Three projections, norms, rotation and the writing to the cache in one kernel, likewise."""
        return rotated_projection.prepare(self._weights)

    @cached_property
    def _output_projection(self):
        """With what it is added to, likewise."""
        return added_projection.prepare(self._weights.layers[0].output)

    @cached_property
    def _down_projection(self):
        return added_projection.prepare(self._weights.layers[0].down)

    @cached_property
    def _weighed_tile(self):
        """Stretches as wide as those projections leave, for the kernels after both are compiled for their number."""
        if self._down_projection is None:
            return _WEIGHED
        return {"ROWS": 64, "BLOCK": self._down_projection.columns, "num_warps": 4}

    def enter(self, rows: DeviceRows, size, block_size):
        return stepping.enter(self._weights.embedding, rows, size, block_size)

    def advance(self, rows: DeviceRows, tokens, logprobs):
        stepping.advance(rows, tokens, logprobs)

    def project_heads(self, residual, addition, layer: Layer, positions, slots, cache: LayerCache):
        streams = len(residual) <= streaming.ROWS and self._rotated_projection is not None
        x = self._normed(residual, addition, layer.attention_norm, streams=streams)
        project = self._rotated_projection if streams else self.rotate_and_store
        return project(x, layer, positions, slots, cache)

    def project_output(self, residual, mixed, layer: Layer):
        norm = None if self._gated_projection is None else layer.mlp_norm
        x = self.rounded(mixed) if self._weights.rounds else Rows(mixed)
        return self._added(residual, x, layer.output, self._output_projection, norm)

    def project_down(self, residual, gated, layer: Layer, following_norm):
        norm = None if self._rotated_projection is None else following_norm
        return self._added(residual, gated, layer.down, self._down_projection, norm)

    def _added(self, residual, x, linear: FusedLinear, project, norm):
        """At once, where the projection streams its weights."""
        if len(residual) > streaming.ROWS or project is None:
            return linear(x)
        return project(x, linear, residual, None if self._weights.rounds else norm)

    def project_gated(self, residual, addition, layer: Layer):
        rounds = self._weights.rounds
        streams = len(residual) <= streaming.ROWS and self._gated_projection is not None
        x = self._normed(residual, addition, layer.mlp_norm, streams=streams)
        if not streams:
            return self.gated(layer.gate_up, x, rounds=rounds)
        gated = self._gated_projection(x, layer.gate_up.streamed)
        return self.rounded(gated) if rounds else Rows(gated)

    def _normed(self, residual, addition, weight, *, streams):
        """For a product: one that streams its weights completes norms itself, but not in 8 bits, whose scales need
        whole rows."""
        if isinstance(addition, Weighed):
            return addition
        rounds = self._weights.rounds
        if streams and not rounds:
            return self._weighed(residual, addition, weight)
        return self.add_and_norm(residual, addition, weight, rounds=rounds)

    def _weighed(self, residual, addition, weight):
        """After what is to be added."""
        tile = self._weighed_tile
        weighed = streaming.new_weighed(residual, triton.cdiv(residual.shape[1], tile["BLOCK"]))
        self._add(residual, addition, tile, weight, weighed)
        return weighed

    def add_and_norm(self, residual, addition, weight, *, rounds):
        rows, hidden = residual.shape
        out = _empty_rows(residual, hidden, rounds)
        if addition is not None and (addition.up is not None or addition.parts > 1):
            self._add(residual, addition, _ADDED)
            addition = None
        values, scale, _ = addition or Rows(None)
        launch(
            _add_and_norm,
            (rows,),
            residual,
            values,
            0 if values is None else values.stride(0),
            scale,
            weight,
            out.values,
            out.scale,
            hidden,
            self._weights.epsilon,
            BLOCK=triton.next_power_of_2(hidden),
            num_warps=8,
            **OVERLAPPING,
        )
        return out

    def _add(self, residual, addition, tile, weight=None, weighed=(None, None)):
        rows, hidden = residual.shape
        _, squares = weighed
        launch(
            _add,
            (triton.cdiv(rows, tile["ROWS"]), triton.cdiv(hidden, tile["BLOCK"])),
            residual,
            *((None, 0, 0, None, None, 0) if addition is None else _pointers(addition)),
            weight,
            *weighed,
            0 if squares is None else squares.stride(0),
            rows,
            hidden,
            OPEN=None if addition is None else _open(addition),
            **tile,
            **OVERLAPPING,
        )

    def rounded(self, x):
        return Rows(*rounding.round_rows(x, at_least=streaming.ROWS))

    def rotate_and_store(self, x: Rows, layer: Layer, positions, slots, cache: LayerCache):
        w, rows = self._weights, len(x.values)
        qkv = layer.qkv(x)
        queries = qkv.values.new_empty(rows, w.query_heads * w.head_dim)
        launch(
            _rotate_and_store,
            (triton.cdiv(rows, _ROTATED_ROWS), w.query_heads + 2 * w.kv_heads),
            *_pointers(qkv),
            layer.query_norm,
            layer.key_norm,
            w.cos,
            w.sin,
            positions,
            slots,
            queries,
            *cache.keys,
            *cache.values,
            rows,
            w.epsilon,
            OPEN=_open(qkv),
            QUERY_HEADS=w.query_heads,
            KV_HEADS=w.kv_heads,
            DIM=w.head_dim,
            BLOCK_SIZE=cache.keys.block_size,
            ROWS=_ROTATED_ROWS,
            num_warps=4,
            **OVERLAPPING,
        )
        return queries

    def gated(self, linear: FusedLinear, x: Rows, *, rounds):
        rows, inner = len(x.values), linear.width // 2
        gate_up = linear(x)
        out = gate_up.values.new_empty(rows, inner)
        together = 16 if rows <= 16 else 64
        launch(
            _gated,
            (triton.cdiv(rows, together), triton.cdiv(inner, _COLUMNS)),
            *_pointers(gate_up),
            out,
            rows,
            inner,
            OPEN=_open(gate_up),
            ROWS=together,
            BLOCK=_COLUMNS,
            num_warps=4,
            **OVERLAPPING,
        )
        return self.rounded(out) if rounds else Rows(out)

    def gather(self, cache: LayerCache, tables, length):
        return attention.gather(self._weights, cache, tables, length)

    def attend(self, query, cache: LayerCache, positions, tables, shared: SharedPrompts | None):
        return attention.attend(self._weights, query, cache, positions, tables, shared)

    def sample(self, logits, temperatures, seeds, positions):
        return sampling.sample(logits, temperatures, seeds, positions)


def _empty_rows(like, width, rounds):
    if not rounds:
        return Rows(streaming.new_rows(like, width))
    return Rows(streaming.new_rows(like, width, FP8), like.new_empty(len(like), 1, dtype=torch.float32))


def _pointers(rows: Rows):
    """A product and what completes it, as the kernels take them."""
    values, up = rows.values, None if rows.up is None else rows.up.matrix
    part_stride = 0 if rows.parts == 1 else values.stride(0)
    return values, part_stride, values.stride(-2), rows.scale, up, 0 if up is None else up.stride(0)


def _open(rows: Rows):
    """Parts, ranks of a module, from one module's to the next one's, copies, from one copy to the next."""
    if rows.up is None:
        return rows.parts, 0, 0, 0, 0
    matrix, ranks, step, copies = rows.up
    return rows.parts, ranks, step, copies, matrix.shape[1] // copies
