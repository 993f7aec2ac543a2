"""Sampling from whole distributions as Triton kernels: the logits are read once, and of each row one stretch again."""

# ruff: noqa: N803, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

from clotho_trainer.model.launching import OVERLAPPING, follow, launch

_SIDE = 64  # of a stretch of the vocabulary, laid out as a square


@triton.jit
def _drawn_index(sizes, uniform):
    """An index with a probability in proportion to its size; never one of size 0."""
    below = tl.cumsum(sizes, 0)
    whole = tl.max(below, 0)
    return tl.sum(((below <= uniform * whole) & (below < whole)).to(tl.int32), 0)


@triton.jit
def _inverse_temperature(temperatures, row):
    """1 where the likeliest token is taken, and whether it is not."""
    temperature = tl.load(temperatures + row)
    is_random = temperature > 0
    return 1.0 / tl.where(is_random, temperature, 1.0), is_random


@triton.jit
def _measure(logits, vocabulary, temperatures, tops, totals, BLOCK: tl.constexpr):
    """A program is a row and a stretch of the vocabulary: its largest logit, and the sum of exponentials below that."""
    follow()
    row = tl.program_id(0).to(tl.int64)
    stretch = tl.program_id(1)
    column = stretch * BLOCK + tl.arange(0, BLOCK)
    factor, _ = _inverse_temperature(temperatures, row)
    logit = tl.load(logits + row * vocabulary + column, mask=column < vocabulary, other=float("-inf"))
    logit = logit.to(tl.float32) * factor
    top = tl.max(logit, 0)
    place = row * tl.num_programs(1) + stretch
    tl.store(tops + place, top)
    tl.store(totals + place, tl.sum(tl.exp(logit - top), 0))


@triton.jit
def _draw(
    logits,
    vocabulary,
    temperatures,
    seeds,
    positions,
    tops,
    totals,
    stretches,
    tokens,
    logprobs,
    STRETCHES: tl.constexpr,
    SIDE: tl.constexpr,
):
    """A program is a row: it draws a stretch, then a line of the stretch laid out as a square, then a column. The noise
    depends on the row's seed and the position alone."""
    follow()
    row = tl.program_id(0).to(tl.int64)
    factor, is_random = _inverse_temperature(temperatures, row)
    key = (tl.load(seeds + row) << 32) | tl.load(positions + row)
    for_stretch, for_line, for_column, _ = tl.rand4x(key, tl.full((), 0, tl.int32))
    each = tl.arange(0, STRETCHES)
    top = tl.load(tops + row * stretches + each, mask=each < stretches, other=float("-inf"))
    highest = tl.max(top, 0)
    totals = tl.load(totals + row * stretches + each, mask=each < stretches, other=0.0)
    sizes = tl.where(top > float("-inf"), totals * tl.exp(top - highest), 0.0)
    stretch = tl.where(is_random, _drawn_index(sizes, for_stretch), tl.argmax(top, 0))
    side = tl.arange(0, SIDE)
    column = (stretch * SIDE + side[:, None]) * SIDE + side[None, :]
    logit = tl.load(logits + row * vocabulary + column, mask=column < vocabulary, other=float("-inf"))
    logit = logit.to(tl.float32) * factor
    size = tl.exp(logit - tl.max(tl.max(logit, 1), 0))
    line = tl.where(is_random, _drawn_index(tl.sum(size, 1), for_line), tl.argmax(tl.max(logit, 1), 0))
    is_line = side[:, None] == line
    on_line = tl.sum(tl.where(is_line, logit, 0.0), 0)
    within = _drawn_index(tl.sum(tl.where(is_line, size, 0.0), 0), for_column)
    within = tl.where(is_random, within, tl.argmax(on_line, 0))
    chosen = tl.sum(tl.where(side == within, on_line, 0.0), 0)
    tl.store(tokens + row, ((stretch * SIDE + line) * SIDE + within).to(tl.int64))
    tl.store(logprobs + row, chosen - highest - tl.log(tl.sum(sizes, 0)))


def sample(logits, temperatures, seeds, positions):
    """A token a row, and its log-probability. Temperature 0 takes the likeliest."""
    rows, vocabulary = logits.shape
    stretches = triton.cdiv(vocabulary, _SIDE**2)
    tops, totals = logits.new_empty(2, rows, stretches, dtype=torch.float32)
    tokens, logprobs = logits.new_empty(rows, dtype=torch.int64), logits.new_empty(rows, dtype=torch.float32)
    launch(
        _measure,
        (rows, stretches),
        logits,
        vocabulary,
        temperatures,
        tops,
        totals,
        BLOCK=_SIDE**2,
        num_warps=4,
        **OVERLAPPING,
    )
    launch(
        _draw,
        (rows,),
        logits,
        vocabulary,
        temperatures,
        seeds,
        positions,
        tops,
        totals,
        stretches,
        tokens,
        logprobs,
        STRETCHES=triton.next_power_of_2(stretches),
        SIDE=_SIDE,
        num_warps=8,
        **OVERLAPPING,
    )
    return tokens, logprobs
