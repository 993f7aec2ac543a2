"""Rows in 8 bits, each with its scale, as a Triton kernel: it reads them once."""

# ruff: noqa: N803 - constants of kernels are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

from clotho_trainer.model.launching import OVERLAPPING, follow, launch

_WARPS = 8


@triton.jit
def store_rounded(x, row, width, column, inside, out, scales):
    """A whole row in 8 bits, and its scale."""
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-12) / 448.0
    tl.store(out + row * width + column, (x / scale).to(out.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


@triton.jit
def _round(x, stride, out, scales, width, BLOCK: tl.constexpr):
    follow()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    store_rounded(values, row, width, column, inside, out, scales)


def round_rows(x: torch.Tensor, *, at_least: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """There is memory for `at_least` as many."""
    rows, width = x.shape
    if x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty(max(rows, at_least), width, dtype=torch.float8_e4m3fn, device=x.device)[:rows]
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    launch(_round, (rows,), x, x.stride(0), out, scales, width, BLOCK=block, num_warps=_WARPS, **OVERLAPPING)
    return out, scales
