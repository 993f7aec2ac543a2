"""The kernel that projects and gates at once cannot run without a GPU, but it can be compiled for one. A program of its
own, because Triton complains at the end of a process about what its own compiler keeps."""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from clotho_trainer.inference.paged import gated_projection

HOPPER = GPUTarget("cuda", 90, 32)
MEMORY = 227 * 1024  # of a multiprocessor, that a program may have


def compiled(columns: gated_projection.Columns, ranks: int) -> Any:
    kernel: Any = gated_projection._project_and_gate
    shape = gated_projection.constants(columns, hidden=4096, ranks=ranks, item=2)
    kinds = {
        "x": _tiles(gated_projection.ROWS, gated_projection._IN_BOTH),
        "down_tiles": _tiles(gated_projection.ROWS, gated_projection._IN_BOTH),
        "below": _tiles(gated_projection._RANKS.value, gated_projection._IN_HALVES),
        "wide": _tiles(2 * columns.wide, gated_projection._IN_HALVES),
        "narrow": _tiles(2 * (columns.narrow or columns.wide), gated_projection._IN_HALVES),
        "down": "*bf16",
        "ready": "*i32",
        "out": "*bf16",
        "rows": "i32",
        "inner": "i32",
        "readers": "i32",
    }
    signature = {name: kinds.get(name, "constexpr") for name in kernel.arg_names}
    source = GluonASTSource(kernel, signature, shape)
    options = {"num_warps": gated_projection._WARPS, "num_ctas": gated_projection._PAIR}
    return triton.compile(source, target=HOPPER, options=options)


def _tiles(rows: int, halves: Any) -> str:
    layout = gated_projection.tile_layout(rows, gl.bfloat16, halves)
    return f"tensordesc<bf16[{rows},{gated_projection._DEPTH.value}],{layout!r}>"


def check(columns: gated_projection.Columns, ranks: int) -> None:
    found = compiled(columns, ranks)
    assert found.metadata.shared <= MEMORY
    assert "multicast::cluster" in found.asm["ptx"], "two multiprocessors share the rows"
    before, _, after = found.asm["ptx"].partition("griddepcontrol.wait")
    assert "cp.async.bulk.tensor" in before, "weights are on their way before the kernel ahead has ended"
    assert after


if __name__ == "__main__":
    for choice in gated_projection._CHOICES:
        for some in (0, 64):
            check(choice, some)
