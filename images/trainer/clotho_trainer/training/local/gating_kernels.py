"""Gating as Triton kernels. They round where the plain operations do."""

# ruff: noqa: N803 - constants of kernels are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

_BLOCK = 2048  # columns of a program


@triton.jit
def _gate(gate_up, out, out_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gates = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    wide = gates.to(tl.float32)
    active = (wide * tl.sigmoid(wide)).to(gates.dtype).to(tl.float32)
    tl.store(out + row * out_stride + column, (active * up).to(gates.dtype), mask=inside)


@triton.jit
def _gradient(to_gated, gate_up, out, out_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    slope = tl.load(to_gated + row * width + column, mask=inside, other=0.0).to(tl.float32)
    gates = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gates)
    kind = out.dtype.element_ty
    to_gates = slope * up * share * (1.0 + gates * (1.0 - share))
    tl.store(out + row * out_stride + column, to_gates.to(kind), mask=inside)
    tl.store(out + row * out_stride + width + column, (slope * gates * share).to(kind), mask=inside)


def gate(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    rows, width = len(gate_up), gate_up.shape[1] // 2
    _gate[(rows, triton.cdiv(width, _BLOCK))](gate_up, out, out.stride(0), width, BLOCK=_BLOCK, num_warps=8)


def gradient(to_gated: torch.Tensor, gate_up: torch.Tensor, out: torch.Tensor) -> None:
    rows, width = to_gated.shape
    grid = (rows, triton.cdiv(width, _BLOCK))
    _gradient[grid](to_gated, gate_up, out, out.stride(0), width, BLOCK=_BLOCK, num_warps=8)
