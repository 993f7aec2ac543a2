"""Unpacks weights of 4 bits in one pass over memory, their scales included."""

# ruff: noqa: N803, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

from clotho_trainer.model.launching import launch

_BYTES = 2048  # that a program reads


@triton.jit
def _unpack(
    packed,
    values,
    scales,
    levels,
    scale_scales,
    offset,
    out,
    blocks,
    BLOCK_BYTES: tl.constexpr,
    BLOCKS: tl.constexpr,
    SCALE_BLOCK: tl.constexpr,
):
    """Blocks are rows; the first weight of a byte is in its upper half."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    exists = block < blocks
    level = tl.load(scales + block, mask=exists, other=0).to(tl.int32)
    scale = tl.load(levels + level) * tl.load(scale_scales + block // SCALE_BLOCK, mask=exists, other=0.0)
    scale = (scale + tl.load(offset))[:, None]
    byte = tl.arange(0, BLOCK_BYTES)
    pair = tl.load(packed + block[:, None] * BLOCK_BYTES + byte[None, :], mask=exists[:, None], other=0).to(tl.int32)
    kind = out.dtype.element_ty
    first = (tl.load(values + (pair >> 4)) * scale).to(kind)
    second = (tl.load(values + (pair & 15)) * scale).to(kind)
    weight = tl.arange(0, 2 * BLOCK_BYTES)
    target = out + block[:, None] * (2 * BLOCK_BYTES) + weight[None, :]
    tl.store(target, tl.interleave(first, second), mask=exists[:, None])


def unpack(packed: tuple[torch.Tensor, ...], block: int, scale_block: int, out: torch.Tensor) -> None:
    """The tensors of `nf4.Packed` into contiguous memory, whole blocks only."""
    blocks = out.numel() // block
    blocks_each = 2 * _BYTES // block
    launch(
        _unpack,
        (triton.cdiv(blocks, blocks_each),),
        *packed,
        out,
        blocks,
        BLOCK_BYTES=block // 2,
        BLOCKS=blocks_each,
        SCALE_BLOCK=scale_block,
        num_warps=4,
        enable_fp_fusion=False,  # rounds as bitsandbytes does
    )
