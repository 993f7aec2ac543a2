"""Gradients of tokens that lie at several places."""

# ruff: noqa: N803 - constants of kernels are written in capitals
# mypy: ignore-errors

import torch
import triton
import triton.language as tl


@triton.jit
def _add_up(copied, places, ends, out, width, BLOCK: tl.constexpr):
    """A program is a token; what its places hold is added up in single precision."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros((BLOCK,), tl.float32)
    for copy in range(tl.load(ends + token), tl.load(ends + token + 1)):
        place = tl.load(places + copy)
        total += tl.load(copied + place * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)


def add_up(copied: torch.Tensor, places: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The sums of all places of each token; `ends` says which are whose."""
    tokens, width = len(ends) - 1, copied[0].numel()
    out = copied.new_empty(tokens, *copied.shape[1:])
    _add_up[(tokens,)](copied, places, ends, out, width, BLOCK=triton.next_power_of_2(width), num_warps=4)
    return out
