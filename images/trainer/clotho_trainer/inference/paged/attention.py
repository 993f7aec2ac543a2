"""Attention over the key-value cache as Triton kernels: one query a row while decoding, and the keys and values of
prompts side by side."""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import os

import torch
import triton
import triton.language as tl

from clotho_trainer.inference.paged.cache import LayerCache
from clotho_trainer.inference.paged.weights import PolicyWeights

_PROGRAMS = 512  # keys of a row are split until the GPU has this many programs to run
_MOST_SPLITS = 32
_TILE = 32  # keys that are read at once: small tiles, many of them on their way
_FP8_TILE = 64  # of half the size
_HAS_ASSEMBLER = os.environ.get("TRITON_INTERPRET") != "1"


@triton.jit
def _unpack(pairs, HAS_ASSEMBLER: tl.constexpr):
    """Two 8-bit numbers that lie beside each other, as 16-bit ones: the first of each pair, and the second."""
    if HAS_ASSEMBLER:
        first, second = tl.inline_asm_elementwise(
            """{
                .reg .b32 sorted;
                .reg .b16 first, second;
                prmt.b32 sorted, $2, $2, 0x3120;
                mov.b32 {first, second}, sorted;
                cvt.rn.f16x2.e4m3x2 $0, first;
                cvt.rn.f16x2.e4m3x2 $1, second;
            }""",
            "=r,=r,r",
            [pairs],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        first = (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        second = ((pairs >> 8) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    return first, second


@triton.jit
def _soften(score, top, total):
    """Weights below the highest score until now, and what the sums until now fade by."""
    higher = tl.maximum(top, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    fade = tl.exp2(top - higher)
    return higher, weight, fade, total * fade + tl.sum(weight, 1)


@triton.jit
def _block_of(tables, row, table_stride, start, last, BLOCK_SIZE: tl.constexpr):
    return tl.load(tables + row * table_stride + start // BLOCK_SIZE, mask=start < last, other=0).to(tl.int64)


@triton.jit
def _attend(
    queries,
    keys,
    key_scales,
    values,
    value_scales,
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
    IN_FP8: tl.constexpr,
    HAS_ASSEMBLER: tl.constexpr,
):
    """A program is a row, a key head and a share of the row's keys. The query heads that share the key head go
    through them together, padded to what the matrix unit takes. Values of 8 bits come in pairs, because the matrix unit
    takes columns, and only numbers of 16 bits are turned on the way to it: even and odd dimensions are summed apart."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = (tl.load(positions + row) + 1).to(tl.int32)
    member, dimension, within = tl.arange(0, PADDED), tl.arange(0, DIM), tl.arange(0, TILE)
    COLUMNS: tl.constexpr = DIM // 2 if IN_FP8 else DIM
    column = tl.arange(0, COLUMNS)
    which = (row * KV_HEADS + head) * GROUP + member
    is_member = member < GROUP
    query = tl.load(queries + which[:, None] * DIM + dimension[None, :], mask=is_member[:, None], other=0.0)
    if IN_FP8:
        query = query.to(tl.float16)
    share = tl.cdiv(length, SPLITS * TILE) * TILE
    first = split * share
    last = tl.minimum(first + share, length)
    top = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    mixed = tl.zeros([PADDED, COLUMNS], tl.float32)
    mixed_odd = tl.zeros([PADDED, COLUMNS], tl.float32)
    block = _block_of(tables, row, table_stride, first, last, BLOCK_SIZE)
    for start in range(first, last, TILE):
        seen = start + within < length
        token = (block * KV_HEADS + head) * BLOCK_SIZE + start % BLOCK_SIZE + within
        key = tl.load(keys + token[:, None] * DIM + dimension[None, :], mask=seen[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee") * (scale * 1.4426950408889634)
        if IN_FP8:
            score *= tl.load(key_scales + token, mask=seen, other=0.0)[None, :]
        top, weight, fade, total = _soften(tl.where(seen[None, :], score, float("-inf")), top, total)
        value = tl.load(values + token[:, None] * COLUMNS + column[None, :], mask=seen[:, None], other=0)
        if IN_FP8:  # 448 times the scale is the largest value of the token: it keeps weights in the range of 16 bits
            weight *= tl.load(value_scales + token, mask=seen, other=0.0)[None, :] * 448.0
            even, odd = _unpack(value, HAS_ASSEMBLER)
            mixed = mixed * fade[:, None] + tl.dot(weight.to(tl.float16), even)
            mixed_odd = mixed_odd * fade[:, None] + tl.dot(weight.to(tl.float16), odd)
        else:
            mixed = mixed * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        # The next block is known before its turn, so that its keys can be fetched ahead.
        block = _block_of(tables, row, table_stride, start + TILE, last, BLOCK_SIZE)
    total = tl.maximum(total, 1e-30)
    place, target = which, out
    if SPLITS > 1:
        place, target = which * SPLITS + split, partial
        size = tl.where(first < last, top + tl.log2(total), float("-inf"))
        tl.store(partial_weight + place, size, mask=is_member)
    if IN_FP8:
        target += place[:, None] * DIM + 2 * column[None, :]
        total *= 448.0
        tl.store(target + 1, (mixed_odd / total[:, None]).to(target.dtype.element_ty), mask=is_member[:, None])
    else:
        target += place[:, None] * DIM + column[None, :]
    tl.store(target, (mixed / total[:, None]).to(target.dtype.element_ty), mask=is_member[:, None])


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
def _widen_tokens(content, scales, token, out, target, inside, DIM: tl.constexpr):
    dimension = tl.arange(0, DIM)
    rows = tl.load(content + token[:, None] * DIM + dimension[None, :], mask=inside[:, None], other=0.0)
    rows = rows.to(tl.float32) * tl.load(scales + token, mask=inside, other=0.0)[:, None]
    tl.store(out + target[:, None] * DIM + dimension[None, :], rows.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["table_stride", "length"])
def _gather(
    keys,
    key_scales,
    values,
    value_scales,
    tables,
    table_stride,
    length,
    out_keys,
    out_values,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program is a row, a head and a stretch of its tokens."""
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.program_id(2) * TILE + tl.arange(0, TILE)
    inside = position < length
    block = _block_of(tables, row, table_stride, position, length, BLOCK_SIZE)
    token = (block * KV_HEADS + head) * BLOCK_SIZE + position % BLOCK_SIZE
    target = (row * KV_HEADS + head).to(tl.int64) * length + position
    _widen_tokens(keys, key_scales, token, out_keys, target, inside, DIM)
    _widen_tokens(values, value_scales, token, out_values, target, inside, DIM)


def attend(w: PolicyWeights, query, cache: LayerCache, positions, tables):
    """One query a row over the keys up to its position."""
    rows, group = len(query), w.query_heads // w.kv_heads
    in_fp8 = cache.keys.scales is not None
    keys, key_scales, values, value_scales = pointers(cache)
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
        key_scales,
        values.view(torch.int16) if in_fp8 else values,
        value_scales,
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
        BLOCK_SIZE=cache.keys.block_size,
        TILE=min(_FP8_TILE if in_fp8 else _TILE, cache.keys.block_size),
        SPLITS=splits,
        IN_FP8=in_fp8,
        HAS_ASSEMBLER=_HAS_ASSEMBLER,
        num_warps=2,
        num_stages=3 if in_fp8 else 4,
    )
    if splits > 1:
        _join_splits[(rows * w.query_heads,)](partial, sizes, out, DIM=w.head_dim, SPLITS=splits, num_warps=4)
    return out


def gather(w: PolicyWeights, cache: LayerCache, tables, length: int):
    """The first tokens of each row's blocks, side by side: keys and values as [row, head, token, dimension]. In 8 bits
    it is one kernel: single operations would be bound by their launches where many short prompts come one by one."""
    if cache.keys.scales is None:
        return [blocks.gathered(tables, length, w.dtype) for blocks in cache]
    tile = min(_FP8_TILE, cache.keys.block_size)
    out = torch.empty(2, len(tables), w.kv_heads, length, w.head_dim, dtype=w.dtype, device=tables.device)
    _gather[(len(tables), w.kv_heads, triton.cdiv(length, tile))](
        *pointers(cache),
        tables,
        tables.stride(0),
        length,
        out[0],
        out[1],
        KV_HEADS=w.kv_heads,
        DIM=w.head_dim,
        BLOCK_SIZE=cache.keys.block_size,
        TILE=tile,
        num_warps=4,
    )
    return out[0], out[1]


def pointers(cache: LayerCache):
    """Keys, their scales, values, their scales; kernels take a pointer even where they do not read."""
    for blocks in cache:
        yield blocks.content
        yield blocks.content if blocks.scales is None else blocks.scales
