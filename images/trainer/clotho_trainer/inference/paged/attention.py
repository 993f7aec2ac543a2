"""Attention over the key-value cache as Triton kernels: one query a row while decoding, with prompts that rows share
read once, and the keys and values of prompts side by side."""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import os

import torch
import triton
import triton.language as tl

from clotho_trainer.inference.paged.cache import LayerCache
from clotho_trainer.inference.paged.sharing import QUERIES, SharedPrompts
from clotho_trainer.inference.paged.streaming import new_rows
from clotho_trainer.inference.paged.weights import PolicyWeights
from clotho_trainer.model.launching import OVERLAPPING, follow, launch

_PROGRAMS = 512  # keys are split until the GPU has this many programs to run
_MOST_SPLITS = 32
_SHARED_PROGRAMS = 256  # all of them run at once
_SHARED_SPLITS = 8  # of what is shared; a number for each size of batch would be a kernel more to compile for each
# Keys that are read at once, and how many such tiles are on their way; second in 8 bits. A program of one row takes so
# little memory that all of 128 rows with 8 key heads run at once.
_OF_A_ROW = {False: {"TILE": 16, "num_stages": 3, "num_warps": 1}, True: {"TILE": 64, "num_stages": 3, "num_warps": 2}}
_BESIDE_TILES = {False: {"num_stages": 2}, True: {}}  # to leave them room
_OF_A_TILE = {"TILE": 32, "num_stages": 3, "num_warps": 4}
_FP8_GATHERED = 64
_LARGEST = tl.constexpr(448.0)  # in 8 bits
_HAS_ASSEMBLER = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")


@triton.jit
def _unpack(pairs):
    """Two 8-bit numbers that lie beside each other, as 16-bit ones: the first of each pair, and the second."""
    if _HAS_ASSEMBLER:
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
def _block_of(table, start, last, BLOCK_SIZE: tl.constexpr):
    return tl.load(table + start // BLOCK_SIZE, mask=start < last, other=0).to(tl.int64)


@triton.jit
def _share_of(tokens, SPLITS: tl.constexpr, UNIT: tl.constexpr):
    """Tokens of each split, in whole units."""
    return tl.cdiv(tokens, SPLITS * UNIT) * UNIT


@triton.jit
def _read_queries(
    queries,
    row,
    members,
    head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    IN_FP8: tl.constexpr,
):
    """What neighbouring rows ask of a key head, padded to what the matrix unit takes, and the place of each query."""
    index, dimension = tl.arange(0, PADDED), tl.arange(0, DIM)
    place = ((row + index // GROUP) * KV_HEADS + head) * GROUP + index % GROUP
    is_query = index < members * GROUP
    query = tl.load(queries + place[:, None] * DIM + dimension[None, :], mask=is_query[:, None], other=0.0)
    if IN_FP8:
        query = query.to(tl.float16)
    return query, place, is_query


@triton.jit
def _no_sums(PADDED: tl.constexpr, DIM: tl.constexpr, IN_FP8: tl.constexpr):
    """For each query: the highest score, the total weight, and the values it mixes. Values of 8 bits come in pairs,
    because the matrix unit takes columns, and only numbers of 16 bits are turned on the way to it: even and odd
    dimensions are summed apart, and are 448 times too large."""
    COLUMNS: tl.constexpr = DIM // 2 if IN_FP8 else DIM
    top = tl.full([PADDED], float("-inf"), tl.float32)
    nothing = tl.zeros([PADDED, COLUMNS], tl.float32)
    return top, tl.zeros([PADDED], tl.float32), nothing, nothing


@triton.jit
def _add_tokens(
    sums,
    query,
    cache,
    table,
    head,
    first,
    last,
    scale,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    IN_FP8: tl.constexpr,
):
    """The tokens of a row from `first`, where a tile begins, to `last`."""
    keys, key_scales, values, value_scales = cache
    top, total, mixed, mixed_odd = sums
    COLUMNS: tl.constexpr = DIM // 2 if IN_FP8 else DIM
    dimension, column, within = tl.arange(0, DIM), tl.arange(0, COLUMNS), tl.arange(0, TILE)
    block = _block_of(table, first, last, BLOCK_SIZE)
    for start in range(first, last, TILE):
        seen = start + within < last
        token = (block * KV_HEADS + head) * BLOCK_SIZE + start % BLOCK_SIZE + within
        key = tl.load(keys + token[:, None] * DIM + dimension[None, :], mask=seen[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee") * (scale * 1.4426950408889634)
        if IN_FP8:
            score *= tl.load(key_scales + token, mask=seen, other=0.0)[None, :]
        top, weight, fade, total = _soften(tl.where(seen[None, :], score, float("-inf")), top, total)
        value = tl.load(values + token[:, None] * COLUMNS + column[None, :], mask=seen[:, None], other=0)
        if IN_FP8:  # 448 times the scale is the largest value of the token: it keeps weights in the range of 16 bits
            weight *= tl.load(value_scales + token, mask=seen, other=0.0)[None, :] * _LARGEST
            even, odd = _unpack(value)
            mixed = mixed * fade[:, None] + tl.dot(weight.to(tl.float16), even)
            mixed_odd = mixed_odd * fade[:, None] + tl.dot(weight.to(tl.float16), odd)
        else:
            mixed = mixed * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        # The next block is known before its turn, so that its keys can be fetched ahead.
        block = _block_of(table, start + TILE, last, BLOCK_SIZE)
    return top, total, mixed, mixed_odd


@triton.jit
def _add_part(sums, parts, sizes, place, is_query, DIM: tl.constexpr, IN_FP8: tl.constexpr):
    """The mean of many tokens counts as one token, whose score is their size."""
    top, total, mixed, mixed_odd = sums
    dimension = tl.arange(0, DIM)
    size = tl.load(sizes + place, mask=is_query, other=0.0)
    part = tl.load(parts + place[:, None] * DIM + dimension[None, :], mask=is_query[:, None], other=0.0)
    top, weight, fade, total = _soften(size[:, None], top, total)
    if IN_FP8:
        weight *= _LARGEST
        part, odd = tl.split(part.reshape(part.shape[0], DIM // 2, 2))
        mixed_odd = mixed_odd * fade[:, None] + odd * weight
    mixed = mixed * fade[:, None] + part * weight
    return top, total, mixed, mixed_odd


@triton.jit
def _store_mean(sums, target, place, is_query, DIM: tl.constexpr, IN_FP8: tl.constexpr):
    _, total, mixed, mixed_odd = sums
    total = tl.maximum(total, 1e-30)
    dimension = tl.arange(0, DIM)
    if IN_FP8:
        total *= _LARGEST
        mixed = tl.interleave(mixed, mixed_odd)
    mean = (mixed / total[:, None]).to(target.dtype.element_ty)
    tl.store(target + place[:, None] * DIM + dimension[None, :], mean, mask=is_query[:, None])


@triton.jit
def _store_part(sums, parts, sizes, place, is_query, DIM: tl.constexpr, IN_FP8: tl.constexpr):
    """The mean of some of a query's tokens, and how much it counts among all: nothing if there are none."""
    top, total, _, _ = sums
    tl.store(sizes + place, tl.where(total > 0, top + tl.log2(total), float("-inf")), mask=is_query)
    _store_mean(sums, parts, place, is_query, DIM, IN_FP8)


@triton.jit
def _attend_shared(
    queries,
    keys,
    key_scales,
    values,
    value_scales,
    tables,
    table_stride,
    tile_count,
    tiles,
    parts,
    sizes,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    IN_FP8: tl.constexpr,
):
    """What the rows of a tile share, once for all of them: means that `_attend` takes in. A program does one share of a
    tile and a key head after the other. How many there are stands in memory only, and a program for each that is
    possible would be thousands, nearly all of them empty. No kernel writes to the tiles, so they are read before the
    one ahead has ended."""
    count = tl.load(tile_count)
    item = tl.program_id(0)
    tile = tiles + item % tl.maximum(count, 1) * 3
    row, members, tokens = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    follow()
    while item < count * KV_HEADS * SPLITS:
        head, split = item // count % KV_HEADS, item // (count * KV_HEADS)
        share = _share_of(tokens, SPLITS, BLOCK_SIZE)
        first = split * share
        last = tl.minimum(first + share, tokens)
        if first < last:
            query, place, is_query = _read_queries(queries, row, members, head, KV_HEADS, GROUP, QUERIES, DIM, IN_FP8)
            sums = _no_sums(QUERIES, DIM, IN_FP8)
            cache, table = (keys, key_scales, values, value_scales), tables + row * table_stride
            sums = _add_tokens(
                sums, query, cache, table, head, first, last, scale, KV_HEADS, DIM, BLOCK_SIZE, TILE, IN_FP8
            )
            _store_part(sums, parts, sizes, place * SPLITS + split, is_query, DIM, IN_FP8)
        item += tl.num_programs(0)
        tile = tiles + item % count * 3
        row, members, tokens = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)


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
    shared_tokens,
    shared_parts,
    shared_sizes,
    out,
    parts,
    sizes,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    SHARED_SPLITS: tl.constexpr,
    IN_FP8: tl.constexpr,
):
    """A program is a row, a key head, a share of the row's own keys and of the means that `_attend_shared` leaves. The
    query heads that share the key head go through them together. `_attend_shared` lets this kernel start when the
    queries are there, and runs beside it: its means are waited for when the row's own keys are done."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = (tl.load(positions + row) + 1).to(tl.int32)
    shared = 0
    if SHARED_SPLITS > 0:
        shared = tl.load(shared_tokens + row)
    else:
        follow()
    query, place, is_query = _read_queries(queries, row, 1, head, KV_HEADS, GROUP, PADDED, DIM, IN_FP8)
    share = _share_of(length - shared, SPLITS, TILE)
    first = shared + split * share
    last = tl.minimum(first + share, length)
    cache = (keys, key_scales, values, value_scales)
    table = tables + row * table_stride
    sums = _no_sums(PADDED, DIM, IN_FP8)
    sums = _add_tokens(sums, query, cache, table, head, first, last, scale, KV_HEADS, DIM, BLOCK_SIZE, TILE, IN_FP8)
    if SHARED_SPLITS > 0:
        follow()
        filled = tl.cdiv(shared, tl.maximum(_share_of(shared, SHARED_SPLITS, BLOCK_SIZE), 1))
        for part in tl.range(split, filled, SPLITS, num_stages=3):
            sums = _add_part(sums, shared_parts, shared_sizes, place * SHARED_SPLITS + part, is_query, DIM, IN_FP8)
    if SPLITS > 1:
        _store_part(sums, parts, sizes, place * SPLITS + split, is_query, DIM, IN_FP8)
    else:
        _store_mean(sums, out, place, is_query, DIM, IN_FP8)


@triton.jit
def _join_splits(parts, sizes, out, DIM: tl.constexpr, SPLITS: tl.constexpr):
    follow()
    head = tl.program_id(0)
    dimension = tl.arange(0, DIM)
    split = tl.arange(0, SPLITS)
    size = tl.load(sizes + head * SPLITS + split)
    weight = tl.exp2(size - tl.max(size, 0))
    part = tl.load(parts + (head * SPLITS + split)[:, None] * DIM + dimension[None, :])
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
    block = _block_of(tables + row * table_stride, position, length, BLOCK_SIZE)
    token = (block * KV_HEADS + head) * BLOCK_SIZE + position % BLOCK_SIZE
    target = (row * KV_HEADS + head).to(tl.int64) * length + position
    _widen_tokens(keys, key_scales, token, out_keys, target, inside, DIM)
    _widen_tokens(values, value_scales, token, out_values, target, inside, DIM)


def attend(w: PolicyWeights, query, cache: LayerCache, positions, tables, shared: SharedPrompts | None):
    """One query a row over the keys up to its position."""
    rows, group, block_size = len(query), w.query_heads // w.kv_heads, cache.keys.block_size
    in_fp8 = cache.keys.scales is not None
    keys, key_scales, values, value_scales = pointers(cache)
    content = keys, key_scales, values.view(torch.int16) if in_fp8 else values, value_scales
    paging = tables, tables.stride(0)
    shape = {"KV_HEADS": w.kv_heads, "GROUP": group, "DIM": w.head_dim, "BLOCK_SIZE": block_size, "IN_FP8": in_fp8}
    splits, shared_splits, beside = _splits(rows * w.kv_heads), 0, (None, None, None)
    of_a_row = _OF_A_ROW[in_fp8]
    if shared is not None:
        of_a_row = of_a_row | _BESIDE_TILES[in_fp8]
        shared_splits = _SHARED_SPLITS
        shared_parts = _empty_parts(query, rows * w.query_heads * shared_splits, w.head_dim)
        launch(
            _attend_shared,
            (_SHARED_PROGRAMS,),
            query,
            *content,
            *paging,
            shared.count,
            shared.tiles,
            *shared_parts,
            w.head_dim**-0.5,
            **shape,
            **_pipeline(_OF_A_TILE, block_size),
            QUERIES=QUERIES,
            SPLITS=shared_splits,
        )
        beside = shared.tokens, *shared_parts
    out = new_rows(query, query.shape[1])
    parts = (out, out) if splits == 1 else _empty_parts(query, rows * w.query_heads * splits, w.head_dim)
    launch(
        _attend,
        (rows, w.kv_heads, splits),
        query,
        *content,
        positions,
        *paging,
        *beside,
        out,
        *parts,
        w.head_dim**-0.5,
        **shape,
        **_pipeline(of_a_row, block_size),
        PADDED=max(16, triton.next_power_of_2(group)),
        SPLITS=splits,
        SHARED_SPLITS=shared_splits,
    )
    if splits > 1:
        grid = (rows * w.query_heads,)
        launch(_join_splits, grid, *parts, out, DIM=w.head_dim, SPLITS=splits, num_warps=4, **OVERLAPPING)
    return out


def _pipeline(options, block_size: int):
    return {**options, "TILE": min(options["TILE"], block_size), **OVERLAPPING}


def _splits(programs: int) -> int:
    splits = 1
    while programs * splits < _PROGRAMS and splits < _MOST_SPLITS:
        splits *= 2
    return splits


def _empty_parts(like, count: int, dim: int):
    """Means, and how much each counts."""
    return (
        torch.empty(count, dim, dtype=torch.float32, device=like.device),
        torch.empty(count, dtype=torch.float32, device=like.device),
    )


def gather(w: PolicyWeights, cache: LayerCache, tables, length: int):
    """The first tokens of each row's blocks, side by side: keys and values as [row, head, token, dimension]. In 8 bits
    it is one kernel: single operations would be bound by their launches where many short prompts come one by one."""
    if cache.keys.scales is None:
        return [blocks.gathered(tables, length, w.dtype) for blocks in cache]
    tile = min(_FP8_GATHERED, cache.keys.block_size)
    out = torch.empty(2, len(tables), w.kv_heads, length, w.head_dim, dtype=w.dtype, device=tables.device)
    launch(
        _gather,
        (len(tables), w.kv_heads, triton.cdiv(length, tile)),
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
