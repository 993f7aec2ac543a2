"""Kernels for Hopper cannot run without a GPU, but they can be compiled for one. A program of its own, because Triton
complains at the end of a process about what its own compiler keeps."""

from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from clotho_trainer.inference.paged import gated_projection, rotated_projection, streaming

HOPPER = GPUTarget("cuda", 90, 32)
MEMORY = 227 * 1024  # of a multiprocessor, that a program may have


def gated(columns: gated_projection.Columns, ranks: int) -> Any:
    kinds = {
        "x": _tiles(streaming.ROWS, streaming.IN_BOTH),
        "down_tiles": _tiles(streaming.ROWS, streaming.IN_BOTH),
        "below": _tiles(streaming.RANKS_EACH.value, streaming.IN_HALVES),
        "wide": _tiles(2 * columns.wide, streaming.IN_HALVES),
        "narrow": _tiles(2 * (columns.narrow or columns.wide), streaming.IN_HALVES),
        "down": "*bf16",
        "ready": "*i32",
        "squares": "*fp32",
        "out": "*bf16",
        "rows": "i32",
        "inner": "i32",
        "readers": "i32",
        "epsilon": "fp32",
    }
    shape = gated_projection.constants(columns, hidden=4096, ranks=ranks) | {"STRETCHES": 16}
    return _compiled(gated_projection._project_and_gate, kinds, shape, gated_projection._WARPS)


def rotated(heads: rotated_projection.Heads, ranks: int, *, has_norms: bool) -> Any:
    kinds = {
        "x": _tiles(streaming.ROWS, streaming.IN_HALVES),
        "down_tiles": _tiles(streaming.ROWS, streaming.IN_HALVES),
        "source": _tiles(heads.dim, streaming.IN_BOTH),
        "below": _tiles(streaming.RANKS_EACH.value, streaming.IN_BOTH),
        "ready": "*i32",
        "squares": "*fp32",
        "positions": "*i64",
        "slots": "*i64",
        "rows": "i32",
        "width": "i32",
        "readers": "i32",
        "epsilon": "fp32",
    }
    tensors = ("down", "cos", "sin", "queries", "keys", "values", "query_norm", "key_norm")
    shape = rotated_projection.constants(heads, 4096, ranks, 128, has_norms=has_norms) | {"STRETCHES": 16}
    kinds |= dict.fromkeys(tensors, "*bf16")
    return _compiled(rotated_projection._project_and_rotate, kinds, shape, rotated_projection._WARPS)


def _compiled(kernel: Any, kinds: Mapping[str, str], shape: Mapping[str, int], warps: int) -> Any:
    signature = {name: kinds.get(name, "constexpr") for name in kernel.arg_names}
    options = {"num_warps": warps, "num_ctas": streaming.PAIR}
    return triton.compile(GluonASTSource(kernel, signature, shape), target=HOPPER, options=options)


def _tiles(rows: int, halves: Any) -> str:
    layout = streaming.tile_layout(rows, halves)
    return f"tensordesc<bf16[{rows},{streaming.DEPTH.value}],{layout!r}>"


def check(found: Any) -> None:
    assert found.metadata.shared <= MEMORY
    assert "multicast::cluster" in found.asm["ptx"], "two multiprocessors share what they read"
    before, _, after = found.asm["ptx"].partition("griddepcontrol.launch_dependents")  # once it has waited
    assert "cp.async.bulk.tensor" in before, "weights are on their way before the kernel ahead has ended"
    assert after


if __name__ == "__main__":
    for some in (0, 64):
        for choice in gated_projection._CHOICES:
            check(gated(choice, some))
        for dim in (64, 128):
            check(rotated(rotated_projection.Heads(32, 8, dim), some, has_norms=some > 0))
