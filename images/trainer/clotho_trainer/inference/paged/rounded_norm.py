"""What a product adds to the residual, the norm after it and rounding to 8 bits, in one kernel for Hopper.

A norm and a scale need whole rows: eight multiprocessors share some, as one would need too long for its adapters.
"""

# ruff: noqa: N803, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from clotho_trainer.inference.paged.linear import Rows
from clotho_trainer.inference.paged.streaming import is_hopper
from clotho_trainer.model.fp8 import FP8

_ROWS = 16  # of a program: the matrix unit takes no fewer
_SHARERS = 8
_WARPS = 8
_MOST_COLUMNS = 4096
_FACTORS = (16, 32, 64, 128)  # ranks and copies of the adapter, all together
_IN_COLUMNS = gl.constexpr([[0, 1], [0, 2], [0, 4]])  # how they are shared


@gluon.jit(do_not_specialize=["rows"])
def _add_norm_and_round(
    residual,
    values,
    stride,
    scales,
    up,
    up_stride,
    weight,
    out,
    out_scales,
    rows,
    epsilon,
    HIDDEN: gl.constexpr,
    COLUMNS: gl.constexpr,
    RANKS: gl.constexpr,
    COPIES: gl.constexpr,
    COPY: gl.constexpr,
    ROWS: gl.constexpr,
):
    """Rounded where the modules round."""
    kind: gl.constexpr = residual.dtype.element_ty
    product: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, gl.num_warps()], [16, 8], cga_layout=_IN_COLUMNS)
    left: gl.constexpr = gl.DotOperandLayout(0, product, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, product, 2)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [gl.num_warps() // 2, 2], [1, 0], cga_layout=_IN_COLUMNS)
    factor = gl.arange(0, RANKS * COPIES, gl.SliceLayout(1, right))
    output = gl.arange(0, COLUMNS, gl.SliceLayout(0, right))
    place = output[None, :] * up_stride + (factor // RANKS * COPY + factor % RANKS)[:, None]
    factors = gl.load(up + place, mask=(output < HIDDEN)[None, :], other=0.0)
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    inside = column < HIDDEN
    norm = gl.load(weight + column, mask=inside, other=0.0).to(gl.float32)
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    is_row = row < rows
    seen = is_row[:, None] & inside[None, :]
    target = row[:, None] * HIDDEN + column[None, :]
    more = gl.load(values + row[:, None] * stride + column[None, :], mask=seen, other=0.0).to(gl.float32)
    x = gl.load(residual + target, mask=seen, other=0.0).to(gl.float32)
    scale = gl.load(scales + row, mask=is_row, other=0.0)
    of_adapter = gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, left))
    rank = gl.arange(0, RANKS * COPIES, gl.SliceLayout(0, left))
    place = of_adapter[:, None] * stride + HIDDEN + (rank // RANKS * COPY + rank % RANKS)[None, :]
    down = gl.load(values + place, mask=(of_adapter < rows)[:, None], other=0.0)
    added = mma_v2(down, factors, gl.zeros([ROWS, COLUMNS], gl.float32, product))
    more += gl.convert_layout(added, layout)
    more = (more.to(kind).to(gl.float32) * scale[:, None]).to(kind).to(gl.float32)
    x = (x + more).to(kind)
    gl.store(residual + target, x, mask=seen)
    wide = x.to(gl.float32)
    by = 1.0 / gl.sqrt(gl.sum(wide * wide, 1) / HIDDEN + epsilon)
    normed = (wide * by[:, None]).to(kind).to(gl.float32)
    result = (norm[None, :] * normed).to(kind).to(gl.float32)
    scale = gl.maximum(gl.max(gl.abs(result), 1), 1e-12) / 448.0
    gl.store(out + target, (result / scale[:, None]).to(out.dtype.element_ty), mask=seen)
    gl.store(out_scales + row, scale, mask=is_row)


def is_fit(residual: torch.Tensor, addition: Rows | None) -> bool:
    """Whether it computes this: other kernels do what it does not."""
    if addition is None or addition.up is None or addition.scale is None or addition.parts > 1:
        return False
    factors = addition.up.ranks * addition.up.copies
    return is_hopper(residual.device) and residual.shape[1] <= _MOST_COLUMNS and factors in _FACTORS


def add_norm_and_round(residual: torch.Tensor, addition: Rows, weight: torch.Tensor, epsilon: float) -> Rows:
    rows, hidden = residual.shape
    values, scale, up = addition
    out = Rows(torch.empty_like(residual, dtype=FP8), residual.new_empty(rows, 1, dtype=torch.float32))
    _add_norm_and_round[(triton.cdiv(rows, _ROWS),)](
        residual,
        values,
        values.stride(0),
        scale,
        up.matrix,
        up.matrix.stride(0),
        weight,
        out.values,
        out.scale,
        rows,
        epsilon,
        **constants(hidden, up.ranks, up.copies, up.matrix.shape[1] // up.copies),
        num_warps=_WARPS,
        num_ctas=_SHARERS,
        launch_pdl=True,
    )
    return out


def constants(hidden: int, ranks: int, copies: int, copy: int) -> dict[str, int]:
    """Of the kernel."""
    return {
        "HIDDEN": hidden,
        "COLUMNS": max(triton.next_power_of_2(hidden), _SHARERS * 256),
        "RANKS": ranks,
        "COPIES": copies,
        "COPY": copy,
        "ROWS": _ROWS,
    }
