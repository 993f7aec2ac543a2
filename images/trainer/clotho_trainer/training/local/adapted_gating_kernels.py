"""Gating as Triton kernels that also add what adapters add: to gates, to what they gate, and to the gradient. They
round where the plain operations do. A program goes through some columns of its rows and fetches the next ones ahead."""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

# Tiles, how many of them a program has, and how many are on their way at once if there is room for them.
_GATE = {"ROWS": 32, "BLOCK": 128, "LOOP": 8, "STAGES": 3, "num_warps": 4}
_GRADIENT = {"ROWS": 64, "BLOCK": 64, "LOOP": 8, "STAGES": 2, "num_warps": 4}
_MEMORY = 100_000  # bytes of a program, so that two run beside each other


@triton.jit
def _rows_of(rows, ROWS: tl.constexpr):
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return row, row < rows


@triton.jit
def _first_ranks(below, stride, rows, RANKS: tl.constexpr, FIRST: tl.constexpr):
    """Of x A', as many as are multiplied at once; they are the same for all columns."""
    row, is_row = rows
    rank = FIRST + tl.arange(0, min(64, RANKS & -RANKS))
    return tl.load(below + row[:, None] * stride + rank[None, :], mask=is_row[:, None], other=0.0)


@triton.jit
def _completed(base, adapter, first_ranks, rows, column, inside, RANKS: tl.constexpr, FIRST: tl.constexpr):
    """Columns of the base's product, with what an adapter adds, whose ranks begin with the first one."""
    values, stride = base
    below, below_stride, up, column_stride, rank_stride = adapter
    row, is_row = rows
    kind: tl.constexpr = values.dtype.element_ty
    found = values + row[:, None] * stride + column[None, :]
    total = tl.load(found, mask=is_row[:, None] & inside[None, :], other=0.0).to(tl.float32)
    CHUNK: tl.constexpr = min(64, RANKS & -RANKS)
    for start in tl.static_range(FIRST, FIRST + RANKS, CHUNK):
        rank = start + tl.arange(0, CHUNK)
        left = first_ranks
        if start > FIRST:
            left = tl.load(below + row[:, None] * below_stride + rank[None, :], mask=is_row[:, None], other=0.0)
        factors = up + column[:, None] * column_stride + rank[None, :] * rank_stride
        right = tl.load(factors, mask=inside[:, None], other=0.0)
        total += tl.dot(left, tl.trans(right), input_precision="ieee")
    return total.to(kind).to(tl.float32)


@triton.jit
def _gate(
    gate_up,
    below,
    below_stride,
    up,
    up_stride,
    out,
    rows,
    width,
    RANKS: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LOOP: tl.constexpr,
    STAGES: tl.constexpr,
):
    kind: tl.constexpr = out.dtype.element_ty
    of_gates = (below, below_stride, up, up_stride, 1)
    of_gated = (below, below_stride, up + width * up_stride, up_stride, 1)
    place = _rows_of(rows, ROWS)
    row, is_row = place
    to_gates = _first_ranks(below, below_stride, place, RANKS, 0)
    to_gated = _first_ranks(below, below_stride, place, RANKS, STEP)
    for tile in tl.range(0, LOOP, num_stages=STAGES):
        column = (tl.program_id(0) * LOOP + tile) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        gates = _completed((gate_up, 2 * width), of_gates, to_gates, place, column, inside, RANKS, 0)
        gated = _completed((gate_up + width, 2 * width), of_gated, to_gated, place, column, inside, RANKS, STEP)
        active = (gates * tl.sigmoid(gates)).to(kind).to(tl.float32)
        target = out + row[:, None] * width + column[None, :]
        tl.store(target, (active * gated).to(kind), mask=is_row[:, None] & inside[None, :])


@triton.jit
def _gradient(
    slopes,
    back,
    back_stride,
    down,
    gate_up,
    below,
    below_stride,
    up,
    up_stride,
    out,
    rows,
    width,
    BACK_RANKS: tl.constexpr,
    RANKS: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LOOP: tl.constexpr,
    STAGES: tl.constexpr,
):
    kind: tl.constexpr = out.dtype.element_ty
    of_slopes = (back, back_stride, down, 1, width)
    of_gates = (below, below_stride, up, up_stride, 1)
    of_gated = (below, below_stride, up + width * up_stride, up_stride, 1)
    place = _rows_of(rows, ROWS)
    row, is_row = place
    to_slopes = _first_ranks(back, back_stride, place, BACK_RANKS, 0)
    to_gates = _first_ranks(below, below_stride, place, RANKS, 0)
    to_gated = _first_ranks(below, below_stride, place, RANKS, STEP)
    for tile in tl.range(0, LOOP, num_stages=STAGES):
        column = (tl.program_id(0) * LOOP + tile) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        slope = _completed((slopes, width), of_slopes, to_slopes, place, column, inside, BACK_RANKS, 0)
        gates = _completed((gate_up, 2 * width), of_gates, to_gates, place, column, inside, RANKS, 0)
        gated = _completed((gate_up + width, 2 * width), of_gated, to_gated, place, column, inside, RANKS, STEP)
        share = tl.sigmoid(gates)
        target, seen = out + row[:, None] * 2 * width + column[None, :], is_row[:, None] & inside[None, :]
        tl.store(target, (slope * gated * share * (1.0 + gates * (1.0 - share))).to(kind), mask=seen)
        tl.store(target + width, (slope * gates * share).to(kind), mask=seen)


def gate(gate_up: torch.Tensor, below: torch.Tensor, up: torch.Tensor, ranks: int, step: int) -> torch.Tensor:
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    adapters = below, below.stride(0), up, up.stride(0)
    grid, shape = _launch(_GATE, out, 2, 2 * ranks)
    _gate[grid](gate_up, *adapters, out, rows, width, RANKS=ranks, STEP=step, **shape)
    return out


def gradient(
    to_gated: torch.Tensor,
    back: torch.Tensor,
    down: torch.Tensor,
    gate_up: torch.Tensor,
    below: torch.Tensor,
    up: torch.Tensor,
    ranks: int,
    step: int,
) -> torch.Tensor:
    rows, width = to_gated.shape
    out = torch.empty_like(gate_up)
    adapters = below, below.stride(0), up, up.stride(0)
    grid, shape = _launch(_GRADIENT, to_gated, 3, 2 * ranks + len(down))
    _gradient[grid](
        to_gated,
        back,
        back.stride(0),
        down,
        gate_up,
        *adapters,
        out,
        rows,
        width,
        BACK_RANKS=len(down),
        RANKS=ranks,
        STEP=step,
        **shape,
    )
    return out


def _launch(plan: dict[str, int], like: torch.Tensor, tensors: int, ranks: int):
    """The grid, and the plan as far as there is room. `tensors` of that shape are read, and so many ranks for each of
    their columns."""
    rows, width = like.shape
    fetched = plan["BLOCK"] * (tensors * plan["ROWS"] + ranks) * like.element_size()
    grid = triton.cdiv(width, plan["BLOCK"] * plan["LOOP"]), triton.cdiv(rows, plan["ROWS"])
    return grid, plan | {"STAGES": max(min(plan["STAGES"], _MEMORY // fetched), 1)}
