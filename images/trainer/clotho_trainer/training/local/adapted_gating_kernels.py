"""Gating as Triton kernels that also add what adapters add: to gates, to what they gate, and to the gradient. They
round where the plain operations do."""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

_TILE = {"ROWS": 64, "BLOCK": 128, "num_warps": 8}


@triton.jit
def _place(rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Programs that run at the same time lie side by side."""
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return row, row < rows, column, column < width


@triton.jit
def _completed(base, adapter, place, RANKS: tl.constexpr, FIRST: tl.constexpr):
    """Columns of the base's product, with what an adapter adds, whose ranks begin with the first one."""
    values, stride = base
    below, below_stride, up, column_stride, rank_stride = adapter
    row, is_row, column, inside = place
    kind: tl.constexpr = values.dtype.element_ty
    found = values + row[:, None] * stride + column[None, :]
    total = tl.load(found, mask=is_row[:, None] & inside[None, :], other=0.0).to(tl.float32)
    CHUNK: tl.constexpr = min(64, RANKS & -RANKS)
    for start in tl.static_range(FIRST, FIRST + RANKS, CHUNK):
        rank = start + tl.arange(0, CHUNK)
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
):
    place = _place(rows, width, ROWS, BLOCK)
    row, is_row, column, inside = place
    gates = _completed((gate_up, 2 * width), (below, below_stride, up, up_stride, 1), place, RANKS, 0)
    further = (below, below_stride, up + width * up_stride, up_stride, 1)
    gated = _completed((gate_up + width, 2 * width), further, place, RANKS, STEP)
    kind: tl.constexpr = out.dtype.element_ty
    active = (gates * tl.sigmoid(gates)).to(kind).to(tl.float32)
    target = out + row[:, None] * width + column[None, :]
    tl.store(target, (active * gated).to(kind), mask=is_row[:, None] & inside[None, :])


@triton.jit
def _gradient(
    to_gated,
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
):
    place = _place(rows, width, ROWS, BLOCK)
    row, is_row, column, inside = place
    slope = _completed((to_gated, width), (back, back_stride, down, 1, width), place, BACK_RANKS, 0)
    gates = _completed((gate_up, 2 * width), (below, below_stride, up, up_stride, 1), place, RANKS, 0)
    further = (below, below_stride, up + width * up_stride, up_stride, 1)
    gated = _completed((gate_up + width, 2 * width), further, place, RANKS, STEP)
    share = tl.sigmoid(gates)
    kind: tl.constexpr = out.dtype.element_ty
    target, seen = out + row[:, None] * 2 * width + column[None, :], is_row[:, None] & inside[None, :]
    tl.store(target, (slope * gated * share * (1.0 + gates * (1.0 - share))).to(kind), mask=seen)
    tl.store(target + width, (slope * gates * share).to(kind), mask=seen)


def gate(gate_up: torch.Tensor, below: torch.Tensor, up: torch.Tensor, ranks: int, step: int) -> torch.Tensor:
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    adapters = below, below.stride(0), up, up.stride(0)
    _gate[_grid(rows, width)](gate_up, *adapters, out, rows, width, RANKS=ranks, STEP=step, **_TILE)
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
    _gradient[_grid(rows, width)](
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
        **_TILE,
    )
    return out


def _grid(rows: int, width: int) -> tuple[int, int]:
    return triton.cdiv(width, _TILE["BLOCK"]), triton.cdiv(rows, _TILE["ROWS"])
