"""Kernels that follow each other closely: from Hopper on, one may start while the one before it still runs."""

# mypy: ignore-errors

import torch
import triton
import triton.language as tl

_OVERLAPS = tl.constexpr(torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0))
OVERLAPPING = {"launch_pdl": True} if _OVERLAPS.value else {}  # how a kernel that calls `follow` is launched


@triton.jit
def follow():
    """Before a kernel reads what others have written: they have ended after this, and the next one may start."""
    if _OVERLAPS:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def follow_closely():
    """The next one may even start before: it reads nothing but weights until this one has ended."""
    if _OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
