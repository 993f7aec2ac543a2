"""Heads of queries, keys and values as a product leaves them: normalised, rotated, and stored where they belong."""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def halves(total):
    return gl.split(total.reshape([total.shape[0], 2, total.shape[1] // 2]).permute([0, 2, 1]))


@gluon.jit
def read_tables(head, rows, tables, norms, like, QUERY_HEADS: gl.constexpr, HAS_NORMS: gl.constexpr):
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
def _store_to_cache(first, second, blocks, head, rows):
    """In the precision of the cache, of which each head of a token has a scale if it has 8 bits."""
    content, scales = blocks
    if scales is not None:
        kind: gl.constexpr = gl.bfloat16  # in which it would be without them
        first = first.to(kind).to(gl.float32)
        second = second.to(kind).to(gl.float32)
        largest = gl.maximum(gl.max(gl.abs(first), 1), gl.max(gl.abs(second), 1))
        scale = gl.maximum(largest, 1e-12) / 448.0
        row = gl.arange(0, first.shape[0], gl.SliceLayout(1, first.type.layout))
        gl.store(scales + head, scale, mask=row < rows)
        first = first / scale[:, None]
        second = second / scale[:, None]
    _store(first, second, content, head, rows)


@gluon.jit
def finish(
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
    first, second = halves(total.to(kind).to(gl.float32))
    if head < QUERY_HEADS + KV_HEADS:
        if HAS_NORMS:
            first, second = _normalised(first, second, left, right, epsilon, kind)
        first, second = _rotated(first, second, cos, sin, kind)
    row = gl.arange(0, total.shape[0], gl.SliceLayout(1, first.type.layout)).to(gl.int64)
    token = (slot // BLOCK_SIZE) * KV_HEADS * BLOCK_SIZE + slot % BLOCK_SIZE  # in the first head of its block
    if head < QUERY_HEADS:
        _store(first, second, queries, row * QUERY_HEADS + head, rows)
    elif head < QUERY_HEADS + KV_HEADS:
        _store_to_cache(first, second, keys, token + (head - QUERY_HEADS) * BLOCK_SIZE, rows)
    else:
        _store_to_cache(first, second, values, token + (head - QUERY_HEADS - KV_HEADS) * BLOCK_SIZE, rows)
