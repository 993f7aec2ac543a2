"""The beginning and the end of a decode step as Triton kernels: single operations would be a dozen, each of which takes
as long as its launch."""

# ruff: noqa: N803, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

from clotho_trainer.inference.core.block_manager import NULL_BLOCK
from clotho_trainer.inference.paged.device_rows import DeviceRows
from clotho_trainer.model.launching import OVERLAPPING, follow, launch

_NULL_BLOCK = tl.constexpr(NULL_BLOCK)


@triton.jit
def _enter(
    tokens,
    positions,
    cached,
    tables,
    table_stride,
    embedding,
    residual,
    slots,
    hidden,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program is a row."""
    follow()
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row)
    block = tl.load(tables + row * table_stride + position // BLOCK_SIZE).to(tl.int64)
    block = tl.where(position < tl.load(cached + row), _NULL_BLOCK, block)
    tl.store(slots + row, block * BLOCK_SIZE + position % BLOCK_SIZE)
    column = tl.arange(0, BLOCK)
    values = tl.load(embedding + tl.load(tokens + row) * hidden + column, mask=column < hidden)
    tl.store(residual + row * hidden + column, values, mask=column < hidden)


@triton.jit(do_not_specialize=["rows"])
def _advance(
    sampled,
    sampled_logprobs,
    tokens,
    positions,
    last,
    drawn,
    logprobs,
    stride,
    taken,
    rows,
    BLOCK: tl.constexpr,
):
    """One program for all rows, as it counts the step when all of them are written."""
    follow()
    row = tl.arange(0, BLOCK)
    is_row = row < rows
    step = tl.load(taken)
    token = tl.load(sampled + row, mask=is_row)
    tl.store(drawn + step * stride + row, token, mask=is_row)
    tl.store(tokens + row, token, mask=is_row)
    tl.store(logprobs + step * stride + row, tl.load(sampled_logprobs + row, mask=is_row), mask=is_row)
    position = tl.minimum(tl.load(positions + row, mask=is_row) + 1, tl.load(last + row, mask=is_row))
    tl.store(positions + row, position, mask=is_row)
    tl.debug_barrier()
    tl.store(taken, step + 1)


def enter(embedding, rows: DeviceRows, size: int, block_size: int):
    """The embedded tokens of the first rows, and the slots of the cache that are theirs."""
    hidden = embedding.shape[1]
    residual, slots = embedding.new_empty(size, hidden), rows.positions.new_empty(size)
    launch(
        _enter,
        (size,),
        rows.tokens,
        rows.positions,
        rows.cached,
        rows.tables,
        rows.tables.stride(0),
        embedding,
        residual,
        slots,
        hidden,
        BLOCK_SIZE=block_size,
        BLOCK=triton.next_power_of_2(hidden),
        num_warps=4,
        **OVERLAPPING,
    )
    return residual, slots


def advance(rows: DeviceRows, tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
    """Take what was sampled as the input of the next step. Rows that have ended stay where they are."""
    launch(
        _advance,
        (1,),
        tokens,
        logprobs,
        rows.tokens,
        rows.positions,
        rows.last,
        rows.drawn,
        rows.logprobs,
        rows.drawn.stride(0),
        rows.taken,
        len(tokens),
        BLOCK=triton.next_power_of_2(len(rows.tokens)),
        num_warps=4,
        **OVERLAPPING,
    )
