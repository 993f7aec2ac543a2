"""A projection of a few rows with its adapter that is added to the residual, in one kernel for Hopper.

Two multiprocessors share a stretch of columns (`split_product.py`). What the next norm needs is written as well, where
it is left to the end of the product after it: see `Weighed`.
"""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from clotho_trainer.inference.paged.linear import FusedLinear, Rows, Weighed
from clotho_trainer.inference.paged.split_product import (
    WARPS,
    allocate,
    fetch,
    finish,
    join,
    ranks_each,
    stages,
    tiles,
)
from clotho_trainer.inference.paged.streaming import (
    PAIR,
    RANKS_DEEP,
    RANKS_EACH,
    ROWS,
    add_all,
    choose,
    is_streamable,
    new_weighed,
    produce,
    reduce_ranks,
    row_factors,
    tile_rows,
)
from clotho_trainer.model.launching import launch

_CHOICES = (64, 128)  # columns of a pair


def columns_for(width: int, ranks: int, multiprocessors: int) -> int | None:
    of_ranks = ranks // RANKS_EACH.value
    busy = {columns: PAIR * (width // columns + of_ranks) for columns in _CHOICES if width % columns == 0}
    return choose(busy, multiprocessors)


@gluon.jit
def _consume(
    down,
    ready,
    scales,
    targets,
    sizes,
    ring,
    used,
    sums,
    RANKS: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
):
    factors, scale = scales
    rows, width, hidden = sizes
    of_ranks, of_base, of_adapter = used
    DEPTH: gl.constexpr = 2 * of_base[0].shape[2]
    program = gl.program_id(0)
    PROGRAMS: gl.constexpr = RANKS // RANKS_EACH
    if program < PROGRAMS:
        reduce_ranks(down, scale, program * RANKS_EACH, ready, ring, of_ranks, hidden // DEPTH, RANKS, STAGES)
    else:
        residual, norm, weighed, squares = targets
        stretch = program - PROGRAMS
        kind: gl.constexpr = residual.dtype.element_ty
        VECTOR: gl.constexpr = 8
        LANES: gl.constexpr = COLUMNS // VECTOR
        layout: gl.constexpr = gl.BlockedLayout(
            [1, VECTOR], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0], cga_layout=[[1, 0]]
        )
        tl.extra.cuda.gdc_wait()
        ROWS: gl.constexpr = of_base[1].shape[1]
        row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        column = stretch * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
        place, is_row = row[:, None] * width + column[None, :], row < rows
        before = gl.load(residual + place, mask=is_row[:, None], other=0.0)
        total = join(add_all(of_base, of_adapter, ring, scale, hidden // DEPTH, RANKS, STAGES), sums, layout)
        if factors is not None:
            total *= row_factors(factors, rows, 0.0, ROWS, 1, 0, layout)[:, None]
        after = (before.to(gl.float32) + total.to(kind).to(gl.float32)).to(kind)
        gl.store(residual + place, after, mask=is_row[:, None])
        if norm is not None:
            wide = after.to(gl.float32)
            of_column = gl.load(norm + column).to(gl.float32)
            gl.store(weighed + place, (wide * of_column[None, :]).to(kind), mask=is_row[:, None])
            gl.store(squares + row * (width // COLUMNS) + stretch, gl.sum(wide * wide, 1), mask=is_row)
        finish(sums)


@gluon.jit(do_not_specialize=["rows"])
def _project_and_add(
    x,
    down_tiles,
    below,
    source,
    up,
    down,
    ready,
    factors,
    scale,
    residual,
    norm,
    weighed,
    squares,
    rows,
    width,
    hidden,
    readers,
    RANKS: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """A program is a pair of multiprocessors, with a stretch of columns, or with some ranks of x A'."""
    ring, filled, used, sums = allocate(x, down_tiles, below, source, up, STAGES)
    read = (x, down_tiles, below, source, up)
    targets = (residual, norm, weighed, squares)
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    down,
                    ready,
                    (factors, scale),
                    targets,
                    (rows, width, hidden),
                    ring,
                    used,
                    sums,
                    RANKS,
                    COLUMNS,
                    STAGES,
                ),
            ),
            (produce, (fetch, read, (ready, readers), width, ring, filled, hidden, RANKS, COLUMNS, STAGES)),
        ],
        [1],
        [24],
    )


class AddedProjection:
    """Of 128 rows at most, with any layer of this shape."""

    def __init__(self, linear: FusedLinear, columns: int) -> None:
        store, up, _ = linear.streamed
        self._ranks = len(store) - linear.width
        self._ranks_each = ranks_each(linear.ranks_of_a_module[0])
        self.columns = columns
        self._flags = torch.zeros(2, dtype=torch.int32, device=store.device)
        # Of ranks that nothing computes it stays 0.
        self._down = up.new_zeros(PAIR * ROWS, self._ranks or RANKS_DEEP.value)

    def __call__(
        self, x: Rows, linear: FusedLinear, residual: torch.Tensor, norm: torch.Tensor | None
    ) -> Weighed | None:
        """What a norm with these weights needs. The flags are 0 before and after."""
        store, up, scale = linear.streamed
        rows, hidden = x.values.shape
        each, stretches = tile_rows(rows), linear.width // self.columns
        weighed = None if norm is None else new_weighed(residual, stretches)
        launch(
            _project_and_add,
            (self._ranks // RANKS_EACH.value + stretches,),
            *tiles(x.values, store, up, self._down, each, self.columns, self._ranks_each),
            self._down,
            self._flags,
            x.scale,
            scale,
            residual,
            norm,
            *(weighed or (None, None)),
            rows,
            linear.width,
            hidden,
            PAIR * stretches,
            **constants(each, self.columns, hidden, self._ranks, x.values.dtype),
            num_warps=WARPS,
            num_ctas=PAIR,
            launch_pdl=True,
        )
        return weighed


def prepare(linear: FusedLinear) -> AddedProjection | None:
    """None where the GPU or the shape of the layers is not fit for it: other kernels are better then."""
    if not is_streamable(linear, at_once=PAIR):
        return None
    store = linear.streamed.store
    multiprocessors = torch.cuda.get_device_properties(store.device).multi_processor_count
    columns = columns_for(linear.width, len(store) - linear.width, multiprocessors)
    return None if columns is None else AddedProjection(linear, columns)


def constants(rows: int, columns: int, hidden: int, ranks: int, kind: torch.dtype) -> dict[str, int]:
    """Of the kernel."""
    return {"RANKS": ranks, "COLUMNS": columns, "STAGES": stages(rows, columns, hidden, kind)}
