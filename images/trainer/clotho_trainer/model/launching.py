"""Kernels that follow each other closely: from Hopper on, one may start while the one before it still runs. And how
many of them are compiled at once."""

# mypy: ignore-errors

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

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


_only_compiles = ContextVar("only_compiles", default=False)


def launch(kernel, grid, *arguments, **options):
    if _only_compiles.get():
        kernel.warmup(*arguments, grid=grid, **options)
    else:
        kernel[grid](*arguments, **options)


@contextmanager
def compiling():
    """What is launched inside is compiled instead, all of it side by side: a kernel takes a core for seconds."""
    before = _only_compiles.set(True)
    try:
        with ThreadPoolExecutor() as executor, triton.AsyncCompileMode(executor):
            yield
    finally:
        _only_compiles.reset(before)
