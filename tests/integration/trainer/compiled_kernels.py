"""Kernels for Hopper cannot run without a GPU, but they can be compiled for one. A program of its own, because Triton
complains at the end of a process about what its own compiler keeps."""

from collections.abc import Mapping
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from clotho_trainer.inference.paged import (
    added_projection,
    gated_projection,
    halved_product,
    rotated_projection,
    split_product,
    streaming,
)
from clotho_trainer.model.fp8 import FP8

HOPPER = GPUTarget("cuda", 90, 32)
MEMORY = 227 * 1024  # of a multiprocessor, that a program may have
_NAMES = {torch.bfloat16: "bf16", FP8: "fp8e4nv"}


def gated(columns: gated_projection.Columns, ranks: int, kind: torch.dtype, rows: int = streaming.ROWS) -> Any:
    wide, narrow = 2 * columns.wide, 2 * (columns.narrow or columns.wide)
    kinds = {
        "x": _tiles(rows, streaming.IN_BOTH, kind),
        "down_tiles": _tiles(rows, streaming.IN_BOTH),
        "below": _tiles(streaming.RANKS_EACH.value, streaming.IN_HALVES, kind),
        "wide": _tiles(wide, streaming.IN_HALVES, kind),
        "narrow": _tiles(narrow, streaming.IN_HALVES, kind),
        "wide_up": _tiles(wide, streaming.IN_HALVES),
        "narrow_up": _tiles(narrow, streaming.IN_HALVES),
        "down": "*bf16",
        "ready": "*i32",
        "out": "*bf16",
        "rows": "i32",
        "inner": "i32",
        "readers": "i32",
        "epsilon": "fp32",
    }
    shape = gated_projection.constants(columns, 4096, ranks, rows)
    return _compiled(gated_projection._project_and_gate, kinds, shape, kind, gated_projection.warps(rows))


def rotated(heads: rotated_projection.Heads, ranks: int, kind: torch.dtype, *, has_norms: bool) -> Any:
    """The cache has 8 bits where the weights have."""
    kinds = {
        "x": _tiles(streaming.ROWS, streaming.IN_HALVES, kind),
        "down_tiles": _tiles(streaming.ROWS, streaming.IN_HALVES),
        "source": _tiles(heads.dim, streaming.IN_BOTH, kind),
        "below": _tiles(streaming.RANKS_EACH.value, streaming.IN_BOTH, kind),
        "up": _tiles(heads.dim, streaming.IN_BOTH),
        "ready": "*i32",
        "positions": "*i64",
        "slots": "*i64",
        "keys": f"*{_NAMES[kind]}",
        "values": f"*{_NAMES[kind]}",
        "rows": "i32",
        "width": "i32",
        "readers": "i32",
        "epsilon": "fp32",
    }
    kinds |= dict.fromkeys(("down", "cos", "sin", "queries", "query_norm", "key_norm"), "*bf16")
    shape = rotated_projection.constants(heads, 4096, ranks, 128, kind, has_norms=has_norms)
    return _compiled(rotated_projection._project_and_rotate, kinds, shape, kind, halved_product.WARPS)


def added(
    columns: int, hidden: int, ranks: int, kind: torch.dtype, *, rank: int = 32, rows: int = streaming.ROWS
) -> Any:
    """In 8 bits the next norm needs whole rows."""
    kinds = {
        **_split_tiles(rows, columns, split_product.ranks_each(rank), kind),
        "down": "*bf16",
        "ready": "*i32",
        "residual": "*bf16",
        "rows": "i32",
        "width": "i32",
        "hidden": "i32",
        "readers": "i32",
    }
    shape = added_projection.constants(rows, columns, hidden, ranks, kind)
    if kind == FP8:
        shape |= dict.fromkeys(("norm", "weighed", "squares"))
    else:
        kinds |= {"norm": "*bf16", "weighed": "*bf16", "squares": "*fp32"}
        shape |= {"factors": None}
    return _compiled(added_projection._project_and_add, kinds, shape, kind, split_product.WARPS)


def _compiled(kernel: Any, kinds: Mapping[str, str], shape: Mapping[str, Any], kind: torch.dtype, warps: int) -> Any:
    """Rows of 8 bits come with their scales, others with what normalises them."""
    scales = ("scale", "key_scales", "value_scales")
    kinds = {**kinds, "factors": "*fp32", **(dict.fromkeys(scales, "*fp32") if kind == FP8 else {})}
    constants = {"STRETCHES": 0 if kind == FP8 else 16} | (dict.fromkeys(scales) if kind != FP8 else {})
    known = {name: value for name, value in (constants | shape).items() if name in kernel.arg_names}
    signature = {name: "constexpr" if name in known else kinds[name] for name in kernel.arg_names}
    options = {"num_warps": warps, "num_ctas": streaming.PAIR}
    return triton.compile(GluonASTSource(kernel, signature, known), target=HOPPER, options=options)


def _split_tiles(rows: int, columns: int, ranks_each: int, kind: torch.dtype) -> dict[str, str]:
    depth = streaming.PAIR * streaming.depth_of(kind)
    return {
        "x": _tiles(rows, streaming.SPLIT, kind, depth),
        "down_tiles": _tiles(streaming.PAIR * rows, streaming.IN_HALVES),
        "below": _tiles(ranks_each, streaming.SPLIT, kind, depth),
        "source": _tiles(columns, streaming.SPLIT, kind, depth),
        "up": _tiles(columns, streaming.IN_BOTH),
    }


def _tiles(rows: int, halves: Any, kind: torch.dtype = torch.bfloat16, depth: int | None = None) -> str:
    depth = depth or streaming.depth_of(kind)
    return f"tensordesc<{_NAMES[kind]}[{rows},{depth}],{streaming.tile_layout(rows, depth, halves, kind)!r}>"


def check(found: Any, *, is_split: bool = True) -> None:
    assert found.metadata.shared <= MEMORY
    sharing = "bulk.shared::cluster.shared::cta" if is_split else "multicast::cluster"
    assert sharing in found.asm["ptx"], "two multiprocessors share what they read, or add what both added up"
    before, _, after = found.asm["ptx"].partition("griddepcontrol.launch_dependents")  # once it has waited
    assert "cp.async.bulk.tensor" in before, "weights are on their way before the kernel ahead has ended"
    assert after


if __name__ == "__main__":
    for precision in _NAMES:
        for choice in gated_projection._CHOICES:
            check(gated(choice, 64, precision), is_split=False)
        check(gated(gated_projection._CHOICES[0], 0, precision), is_split=False)
        for columns in added_projection._CHOICES:
            check(added(columns, 4096, 64, precision))
        check(added(64, 12288, 64, precision, rank=64))
        check(gated(gated_projection._CHOICES[1], 64, precision, streaming.FEW_ROWS), is_split=False)
        check(added(64, 12288, 64, precision, rows=streaming.FEW_ROWS))
        check(added(64, 12288, 0, precision))
        check(rotated(rotated_projection.Heads(32, 8, 128), 64, precision, has_norms=True), is_split=False)
        check(rotated(rotated_projection.Heads(32, 8, 64), 0, precision, has_norms=False), is_split=False)
