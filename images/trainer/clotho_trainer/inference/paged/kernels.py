"""The engine's operations as Triton kernels. They round where the plain ones do and differ only in summation order."""

# ruff: noqa: N803, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

from clotho_trainer.inference.paged.linear import Rows
from clotho_trainer.inference.paged.weights import Layer, PolicyWeights
from clotho_trainer.model.fp8 import FP8

_SAMPLE_COLUMNS = 4096
_PROGRAMS = 512  # keys of a row are split until the GPU has this many programs to run
_MOST_SPLITS = 32
_TILE = 32  # keys that are read at once: small tiles, many of them on their way


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
    values,
    epsilon,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_SCALED: tl.constexpr,
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
    place = ((slot // BLOCK_SIZE) * KV_HEADS * BLOCK_SIZE + slot % BLOCK_SIZE) * DIM
    if head >= QUERY_HEADS + KV_HEADS:
        target = values + place + (head - QUERY_HEADS - KV_HEADS) * BLOCK_SIZE * DIM
        tl.store(target + half, first)
        tl.store(target + DIM // 2 + half, second)
    else:
        kind = first.dtype
        if head < QUERY_HEADS:
            target = queries + (row * QUERY_HEADS + head) * DIM
            norm = query_norm
        else:
            target = keys + place + (head - QUERY_HEADS) * BLOCK_SIZE * DIM
            norm = key_norm
        a, b = first.to(tl.float32), second.to(tl.float32)
        if HAS_NORM:
            factor = 1.0 / tl.sqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / DIM + epsilon)
            a = (a * factor).to(kind).to(tl.float32) * tl.load(norm + half).to(tl.float32)
            b = (b * factor).to(kind).to(tl.float32) * tl.load(norm + DIM // 2 + half).to(tl.float32)
            a, b = a.to(kind).to(tl.float32), b.to(kind).to(tl.float32)
        position = tl.load(positions + row).to(tl.int64)
        c = tl.load(cos + position * (DIM // 2) + half).to(tl.float32)
        s = tl.load(sin + position * (DIM // 2) + half).to(tl.float32)
        tl.store(target + half, ((a * c).to(kind).to(tl.float32) - (b * s).to(kind).to(tl.float32)).to(kind))
        tl.store(target + DIM // 2 + half, ((b * c).to(kind).to(tl.float32) + (a * s).to(kind).to(tl.float32)).to(kind))


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
def _attend(
    queries,
    keys,
    values,
    positions,
    tables,
    table_stride,
    out,
    partial,
    partial_weight,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """A program is a row, a key head and a share of the row's keys. The query heads that share the key head go
    through them together, padded to what the matrix unit takes."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    length = (tl.load(positions + row) + 1).to(tl.int32)
    member = tl.arange(0, PADDED)
    dimension = tl.arange(0, DIM)
    within = tl.arange(0, TILE)
    which = (row * KV_HEADS + head) * GROUP + member
    is_member = member < GROUP
    query = tl.load(queries + which[:, None] * DIM + dimension[None, :], mask=is_member[:, None], other=0.0)
    share = tl.cdiv(length, SPLITS * TILE) * TILE
    first = split * share
    last = tl.minimum(first + share, length)
    top = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    mixed = tl.zeros([PADDED, DIM], tl.float32)
    block = tl.load(tables + row * table_stride + first // BLOCK_SIZE, mask=first < last, other=0).to(tl.int64)
    for start in range(first, last, TILE):
        seen = start + within < length
        slot = (block * KV_HEADS + head) * BLOCK_SIZE + start % BLOCK_SIZE
        where = (slot + within[:, None]) * DIM + dimension[None, :]
        key = tl.load(keys + where, mask=seen[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * 1.4426950408889634)
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        fade = tl.exp2(top - higher)
        value = tl.load(values + where, mask=seen[:, None], other=0.0)
        total = total * fade + tl.sum(weight, 1)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        top = higher
        following = start + TILE  # its block is known before its turn, so that its keys can be fetched ahead
        block = tl.load(tables + row * table_stride + following // BLOCK_SIZE, mask=following < last, other=0).to(
            tl.int64
        )
    result = mixed / tl.maximum(total, 1e-30)[:, None]
    if SPLITS == 1:
        target = out + which[:, None] * DIM + dimension[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=is_member[:, None])
    else:
        place = which * SPLITS + split
        tl.store(partial + place[:, None] * DIM + dimension[None, :], result, mask=is_member[:, None])
        size = tl.where(total > 0, top + tl.log2(tl.maximum(total, 1e-30)), float("-inf"))
        tl.store(partial_weight + place, size, mask=is_member)


@triton.jit
def _join_splits(partial, partial_weight, out, DIM: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0)
    dimension = tl.arange(0, DIM)
    split = tl.arange(0, SPLITS)
    size = tl.load(partial_weight + head * SPLITS + split)
    weight = tl.exp2(size - tl.max(size, 0))
    part = tl.load(partial + (head * SPLITS + split)[:, None] * DIM + dimension[None, :])
    result = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + head * DIM + dimension, result.to(out.dtype.element_ty))


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

    def rotate_and_store(self, qkv, layer: Layer, positions, slots, keys, values):
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
            keys,
            values,
            w.epsilon,
            QUERY_HEADS=w.query_heads,
            KV_HEADS=w.kv_heads,
            DIM=w.head_dim,
            BLOCK_SIZE=keys.shape[2],
            HAS_NORM=has_norm,
            IS_SCALED=qkv.scale is not None,
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

    def attend(self, query, keys, values, positions, tables):
        w, rows = self._weights, len(query)
        group = w.query_heads // w.kv_heads
        splits = 1
        while rows * w.kv_heads * splits < _PROGRAMS and splits < _MOST_SPLITS:
            splits *= 2
        out = torch.empty_like(query)
        shape = (rows * w.query_heads * splits, w.head_dim)
        partial = out if splits == 1 else torch.empty(shape, dtype=torch.float32, device=query.device)
        sizes = out if splits == 1 else torch.empty(shape[:1], dtype=torch.float32, device=query.device)
        _attend[(rows, w.kv_heads, splits)](
            query,
            keys,
            values,
            positions,
            tables,
            tables.stride(0),
            out,
            partial,
            sizes,
            w.head_dim**-0.5,
            KV_HEADS=w.kv_heads,
            GROUP=group,
            PADDED=max(16, triton.next_power_of_2(group)),
            DIM=w.head_dim,
            BLOCK_SIZE=keys.shape[2],
            TILE=min(_TILE, keys.shape[2]),
            SPLITS=splits,
            num_warps=2,
            num_stages=4,
        )
        if splits > 1:
            _join_splits[(rows * w.query_heads,)](partial, sizes, out, DIM=w.head_dim, SPLITS=splits, num_warps=4)
        return out

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
