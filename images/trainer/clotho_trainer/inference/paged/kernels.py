"""The engine's operations as Triton kernels. They round where the plain ones do and differ only in summation order."""

# ruff: noqa: N803, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

from clotho_trainer.inference.paged import attention
from clotho_trainer.inference.paged.cache import LayerCache
from clotho_trainer.inference.paged.linear import Rows
from clotho_trainer.inference.paged.sharing import SharedPrompts
from clotho_trainer.inference.paged.weights import Layer, PolicyWeights
from clotho_trainer.model.fp8 import FP8

_SAMPLE_COLUMNS = 4096


@triton.jit
def _store_rounded(x, row, width, column, inside, out, scales):
    """A whole row in 8 bits, and its scale."""
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-12) / 448.0
    tl.store(out + row * width + column, (x / scale).to(out.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


@triton.jit
def _round(x, out, scales, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    _store_rounded(values, row, width, column, inside, out, scales)


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
    HAS_ADDITION: tl.constexpr,
    IS_SCALED: tl.constexpr,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    x = tl.load(residual + row * hidden + column, mask=inside, other=0.0)
    kind = x.dtype
    if HAS_ADDITION:
        more = tl.load(addition + row * addition_stride + column, mask=inside, other=0.0).to(tl.float32)
        if IS_SCALED:
            more = (more * tl.load(addition_scales + row)).to(kind).to(tl.float32)
        x = (x.to(tl.float32) + more).to(kind)
        tl.store(residual + row * hidden + column, x, mask=inside)
    wide = x.to(tl.float32)
    normed = (wide * (1.0 / tl.sqrt(tl.sum(wide * wide, 0) / hidden + epsilon))).to(kind)
    result = (tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) * normed.to(tl.float32)).to(kind)
    if ROUNDS:
        _store_rounded(result.to(tl.float32), row, hidden, column, inside, out, scales)
    else:
        tl.store(out + row * hidden + column, result, mask=inside)


@triton.jit
def _store_head(first, second, token, content, scales, DIM: tl.constexpr, IN_FP8: tl.constexpr):
    """One head of one token, in two halves, into the cache."""
    half = tl.arange(0, DIM // 2)
    if IN_FP8:
        first, second = first.to(tl.float32), second.to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(first), 0), tl.max(tl.abs(second), 0))
        scale = tl.maximum(largest, 1e-12) / 448.0
        tl.store(scales + token, scale)
        first, second = first / scale, second / scale
    tl.store(content + token * DIM + half, first.to(content.dtype.element_ty))
    tl.store(content + token * DIM + DIM // 2 + half, second.to(content.dtype.element_ty))


@triton.jit
def _rotate_and_store(
    qkv,
    qkv_stride,
    qkv_scales,
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
    epsilon,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_SCALED: tl.constexpr,
    IN_FP8: tl.constexpr,
):
    """A program is one head of one token; the heads are the queries', the keys' and the values', in this order."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = tl.arange(0, DIM // 2)
    source = qkv + row * qkv_stride + head * DIM
    first = tl.load(source + half)
    second = tl.load(source + DIM // 2 + half)
    if IS_SCALED:
        scale = tl.load(qkv_scales + row)
        first = (first.to(tl.float32) * scale).to(first.dtype)
        second = (second.to(tl.float32) * scale).to(second.dtype)
    slot = tl.load(slots + row).to(tl.int64)
    token = (slot // BLOCK_SIZE) * KV_HEADS * BLOCK_SIZE + slot % BLOCK_SIZE  # in the first head of its block
    if head >= QUERY_HEADS + KV_HEADS:
        token += (head - QUERY_HEADS - KV_HEADS) * BLOCK_SIZE
        _store_head(first, second, token, values, value_scales, DIM, IN_FP8)
    else:
        kind = first.dtype
        norm = query_norm if head < QUERY_HEADS else key_norm
        a, b = first.to(tl.float32), second.to(tl.float32)
        if HAS_NORM:
            factor = 1.0 / tl.sqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / DIM + epsilon)
            a = (a * factor).to(kind).to(tl.float32) * tl.load(norm + half).to(tl.float32)
            b = (b * factor).to(kind).to(tl.float32) * tl.load(norm + DIM // 2 + half).to(tl.float32)
            a, b = a.to(kind).to(tl.float32), b.to(kind).to(tl.float32)
        position = tl.load(positions + row).to(tl.int64)
        c = tl.load(cos + position * (DIM // 2) + half).to(tl.float32)
        s = tl.load(sin + position * (DIM // 2) + half).to(tl.float32)
        first = ((a * c).to(kind).to(tl.float32) - (b * s).to(kind).to(tl.float32)).to(kind)
        second = ((b * c).to(kind).to(tl.float32) + (a * s).to(kind).to(tl.float32)).to(kind)
        if head < QUERY_HEADS:
            _store_head(first, second, row * QUERY_HEADS + head, queries, queries, DIM, False)
        else:
            token += (head - QUERY_HEADS) * BLOCK_SIZE
            _store_head(first, second, token, keys, key_scales, DIM, IN_FP8)


@triton.jit
def _gated(
    gate_up, stride, row_scales, out, scales, width, IS_SCALED: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    """A program is a stretch of a row; where it is rounded, the whole row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * stride + column, mask=inside, other=0.0)
    up = tl.load(gate_up + row * stride + width + column, mask=inside, other=0.0)
    kind = gate.dtype
    if IS_SCALED:
        scale = tl.load(row_scales + row)
        gate, up = (gate.to(tl.float32) * scale).to(kind), (up.to(tl.float32) * scale).to(kind)
    wide = gate.to(tl.float32)
    active = (wide / (1.0 + tl.exp(-wide))).to(kind).to(tl.float32)
    result = (active * up.to(tl.float32)).to(kind)
    if ROUNDS:
        _store_rounded(result.to(tl.float32), row, width, column, inside, out, scales)
    else:
        tl.store(out + row * width + column, result, mask=inside)


@triton.jit
def _sample(logits, vocabulary, temperatures, seeds, positions, top, total, best, chosen, token, BLOCK: tl.constexpr):
    """A program is a row and a stretch of the vocabulary: its largest logit, the sum of exponentials below that, and
    the token that wins after Gumbel noise. The noise depends on the row's seed, the position and the token alone."""
    row = tl.program_id(0).to(tl.int64)
    stretch = tl.program_id(1)
    column = stretch * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocabulary
    temperature = tl.load(temperatures + row)
    is_random = temperature > 0
    logit = tl.load(logits + row * vocabulary + column, mask=inside, other=float("-inf")).to(tl.float32)
    logit = logit / tl.where(is_random, temperature, 1.0)
    highest = tl.max(logit, 0)
    key = (tl.load(seeds + row) << 32) | tl.load(positions + row)
    uniform = tl.maximum(tl.rand(key, column), 2.3e-10)
    exponential = tl.where(uniform < 1e-3, uniform + 0.5 * uniform * uniform, -tl.log(1.0 - uniform))
    noisy = logit - tl.where(is_random, tl.log(exponential), 0.0)
    winner = tl.argmax(noisy, 0)
    place = row * tl.num_programs(1) + stretch
    tl.store(top + place, highest)
    tl.store(total + place, tl.sum(tl.exp(logit - highest), 0))
    tl.store(best + place, tl.max(noisy, 0))
    tl.store(chosen + place, tl.sum(tl.where(column == stretch * BLOCK + winner, logit, 0.0), 0))
    tl.store(token + place, (stretch * BLOCK + winner).to(tl.int64))


class TritonOperations:
    """The same operations as `PlainOperations`, fit to be captured in a CUDA graph."""

    def __init__(self, weights: PolicyWeights) -> None:
        self._weights = weights

    def add_and_norm(self, residual, addition, weight, *, rounds):
        rows, hidden = residual.shape
        out = _empty_rows(residual, hidden, rounds)
        more = Rows(residual) if addition is None else addition
        _add_and_norm[(rows,)](
            residual,
            more.values,
            more.values.stride(0),
            _or_any(more.scale, residual),
            weight,
            out.values,
            _or_any(out.scale, residual),
            hidden,
            self._weights.epsilon,
            HAS_ADDITION=addition is not None,
            IS_SCALED=more.scale is not None,
            ROUNDS=rounds,
            BLOCK=triton.next_power_of_2(hidden),
            num_warps=8,
        )
        return out

    def rounded(self, x):
        rows, width = x.shape
        out = _empty_rows(x, width, rounds=True)
        _round[(rows,)](x, *out, width, BLOCK=triton.next_power_of_2(width), num_warps=8)
        return out

    def rotate_and_store(self, qkv, layer: Layer, positions, slots, cache: LayerCache):
        w, rows = self._weights, len(qkv.values)
        queries = qkv.values.new_empty(rows, w.query_heads * w.head_dim)
        has_norm = layer.query_norm is not None
        _rotate_and_store[(rows, w.query_heads + 2 * w.kv_heads)](
            qkv.values,
            qkv.values.stride(0),
            _or_any(qkv.scale, qkv.values),
            layer.query_norm if has_norm else qkv.values,
            layer.key_norm if has_norm else qkv.values,
            w.cos,
            w.sin,
            positions,
            slots,
            queries,
            *attention.pointers(cache),
            w.epsilon,
            QUERY_HEADS=w.query_heads,
            KV_HEADS=w.kv_heads,
            DIM=w.head_dim,
            BLOCK_SIZE=cache.keys.block_size,
            HAS_NORM=has_norm,
            IS_SCALED=qkv.scale is not None,
            IN_FP8=cache.keys.scales is not None,
            num_warps=1,
        )
        return queries

    def gated(self, gate_up, width, *, rounds):
        rows, inner = len(gate_up.values), width // 2
        out = _empty_rows(gate_up.values, inner, rounds)
        whole = triton.next_power_of_2(inner)
        block = whole if rounds else min(1024, whole)
        _gated[(rows, triton.cdiv(inner, block))](
            gate_up.values,
            gate_up.values.stride(0),
            _or_any(gate_up.scale, gate_up.values),
            out.values,
            _or_any(out.scale, gate_up.values),
            inner,
            IS_SCALED=gate_up.scale is not None,
            ROUNDS=rounds,
            BLOCK=block,
            num_warps=16 if rounds else 4,
        )
        return out

    def gather(self, cache: LayerCache, tables, length):
        return attention.gather(self._weights, cache, tables, length)

    def attend(self, query, cache: LayerCache, positions, tables, shared: SharedPrompts):
        return attention.attend(self._weights, query, cache, positions, tables, shared)

    def sample(self, logits, temperatures, seeds, positions):
        rows, vocabulary = logits.shape
        stretches = triton.cdiv(vocabulary, _SAMPLE_COLUMNS)
        top, total, best, chosen = logits.new_empty(4, rows, stretches, dtype=torch.float32)
        token = logits.new_empty(rows, stretches, dtype=torch.int64)
        _sample[(rows, stretches)](
            logits,
            vocabulary,
            temperatures,
            seeds,
            positions,
            top,
            total,
            best,
            chosen,
            token,
            BLOCK=_SAMPLE_COLUMNS,
            num_warps=8,
        )
        winner = best.argmax(-1, keepdim=True)
        logprobs = chosen.gather(-1, winner) - (top + total.log()).logsumexp(-1, keepdim=True)
        return token.gather(-1, winner).squeeze(-1), logprobs.squeeze(-1)


def _empty_rows(like, width, rounds):
    if not rounds:
        return Rows(like.new_empty(len(like), width))
    return Rows(like.new_empty(len(like), width, dtype=FP8), like.new_empty(len(like), 1, dtype=torch.float32))


def _or_any(tensor, other):
    """Kernels take a pointer even where they do not read."""
    return other if tensor is None else tensor
