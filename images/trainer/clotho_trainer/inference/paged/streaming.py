"""What kernels for Hopper have in common that stream weights through shared memory, for a few rows.

What bounds them is reading the weights, so they do little else. The first weights are on their way before the kernel
ahead has ended; two multiprocessors share what both need; and adapters are more columns of the same product, B beside W
and x A' beside x. The first programs compute that meanwhile. In 8 bits, x and W have tiles as large, of twice the
columns; B stays in 16 bits.
"""

# ruff: noqa: N803, N806, PLR0913, PLR0917 - kernels take many arguments, and their constants are written in capitals
# mypy: ignore-errors

from collections.abc import Mapping
from typing import TypeVar

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from clotho_trainer.inference.paged.linear import FusedLinear, Rows, Weighed
from clotho_trainer.model.fp8 import FP8

Choice = TypeVar("Choice")

ROWS = 128  # at most
FEW_ROWS = 64  # a kernel of their own has less to read and to multiply, but takes seconds to compile
PAIR = 2  # multiprocessors that share
WIDTH = 128  # of a tile in shared memory, bytes
RANKS_DEEP = gl.constexpr(64)  # of x A' times B, at once
RANKS_EACH = gl.constexpr(64)  # of a program that computes x A'
MEMORY = 210_000  # bytes of a multiprocessor, for what is on its way
ONCE = gl.constexpr(hopper.CachePolicy(l2=hopper.FractionalEvictionPolicy("evict_first", 1.0)))
IN_BOTH, IN_HALVES, SPLIT = [[0, 0]], [[1, 0]], [[0, 1]]  # what each of a pair gets of a tile: all; rows; columns
KIND = torch.bfloat16  # numbers before a norm may be too large for float16
_HOPPER = 9
_KINDS = {KIND: gl.bfloat16, FP8: gl.float8e4nv}


@gluon.jit
def make_barriers(COUNT: gl.constexpr, of_both: gl.constexpr = False):
    """For each multiprocessor, or at the first of a pair for both."""
    barriers = mbarrier.allocate_mbarrier(batch=COUNT, two_ctas=of_both)
    for index in gl.static_range(COUNT):
        mbarrier.init(barriers.index(index), count=1)
    return barriers


@gluon.jit
def turn(stage, phase, STAGES: gl.constexpr):
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


@gluon.jit
def _read(flag):
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];", "=r,l", [flag], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _order_accesses(some):
    """Of this thread and of the unit that copies tiles."""
    gl.inline_asm_elementwise(
        "fence.proxy.async; mov.u32 $0, 0;", "=r,l", [some], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def hand_over(total, down, first, ready, RANKS: gl.constexpr):
    """x A', of some ranks from the first on, to those that wait for it."""
    row = gl.arange(0, total.shape[0], gl.SliceLayout(1, total.type.layout))
    rank = first + gl.arange(0, total.shape[1], gl.SliceLayout(0, total.type.layout))
    gl.store(down + row[:, None] * RANKS + rank[None, :], total.to(down.dtype.element_ty))
    _order_accesses(ready)
    gl.barrier()
    _announce(ready)


@gluon.jit
def _announce(ready):
    """One thread of each multiprocessor, after all of them have written."""
    gl.inline_asm_elementwise(
        """{
            .reg .pred first;
            .reg .u32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first red.release.gpu.global.add.s32 [$1], 1;
            mov.u32 $0, 0;
        }""",
        "=r,l",
        [ready],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def await_flag(ready, readers, EXPECTED: gl.constexpr):
    """Until x A' is there: programs start in order, so that those which compute it run. The last reader leaves the
    flag as the next kernel needs it; the count of readers wraps around by itself."""
    count = _read(ready)
    while count < EXPECTED:
        count = _read(ready)
    _order_accesses(ready)
    gl.inline_asm_elementwise(
        """{
            .reg .pred first, last;
            .reg .u32 lane, before;
            mov.u32 lane, %laneid;
            setp.eq.u32 first, lane, 0;
            mov.u32 before, 0xffffffff;
            @first atom.acq_rel.gpu.global.inc.u32 before, [$2], $3;
            setp.eq.u32 last, before, $3;
            @last st.release.gpu.global.u32 [$1], 0;
            mov.u32 $0, 0;
        }""",
        "=r,l,l,r",
        [ready, ready + 1, readers - 1],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def produce(
    fetch: gl.constexpr,
    tiles,
    flag,
    width,
    ring,
    filled,
    hidden,
    RANKS: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """One warp: W of a program, or A."""
    x, down, below, source, up = tiles
    xs, downs, pieces, weights, ups = filled
    program = gl.program_id(0)
    PROGRAMS: gl.constexpr = RANKS // RANKS_EACH
    if program < PROGRAMS:
        of_adapter = (x, down, below, up)
        fetch(of_adapter, width + program * RANKS_EACH, flag, ring, (xs, downs, pieces, ups), hidden, 0, STAGES)
    else:
        of_base = (x, down, source, up)
        first = (program - PROGRAMS) * COLUMNS
        fetch(of_base, first, flag, ring, (xs, downs, weights, ups), hidden, RANKS, STAGES)


@gluon.constexpr_function
def _product_layout(columns, kind, warps):
    return gl.NVMMADistributedLayout(
        [3, 0], [warps, 1], [16, columns, 256 // kind.primitive_bitwidth], cga_layout=[[1, 0]]
    )


@gluon.jit
def no_sums(operands):
    """Of rows of the left one, which two multiprocessors divide among them, with rows of the right one."""
    left, right = operands
    layout: gl.constexpr = _product_layout(right.shape[1], left.dtype, gl.num_warps())
    return gl.zeros([left.shape[1], right.shape[1]], gl.float32, layout)


@gluon.jit
def _add_products(total, operands, ring, place, first, last, steps, STAGES: gl.constexpr):
    """Of these steps, and what has been reached. A stage is given back when its products have ended: to this
    multiprocessor, and to the first of a pair where that one loads for both."""
    left, right = operands
    full, mine, both = ring
    EACH: gl.constexpr = right.shape[0] // STAGES
    stage, phase, before = place
    for step in range(first, last):
        mbarrier.wait(full.index(stage), phase)
        one = hopper.warpgroup_mma(left.index(stage), right.index(EACH * stage).permute((1, 0)), total, is_async=True)
        total = hopper.warpgroup_mma_wait(1, deps=[one])
        is_wanted = (step > 0) & (step <= steps - STAGES)
        mbarrier.arrive(mine.index(before), pred=is_wanted)
        if both is not None:
            mbarrier.arrive(both.index(before), pred=is_wanted)
        before = stage
        stage, phase = turn(stage, phase, STAGES)
    return hopper.warpgroup_mma_wait(0, deps=[total]), (stage, phase, before)


@gluon.jit
def add_all(of_base, of_adapter, ring, scale, last, RANKS: gl.constexpr, STAGES: gl.constexpr):
    """x W' in `last` steps, and x A' times B' after it."""
    steps = last + RANKS // RANKS_DEEP
    total = no_sums(of_base)
    if scale is None:
        total, _ = _add_products(total, of_base, ring, (0, 0, 0), 0, steps, steps, STAGES)
    else:
        total, place = _add_products(total, of_base, ring, (0, 0, 0), 0, last, steps, STAGES)
        layout: gl.constexpr = no_sums(of_adapter).type.layout
        total = gl.convert_layout(total * gl.load(scale), layout, assert_trivial=True)
        if RANKS > 0:
            total, _ = _add_products(total, of_adapter, ring, place, last, steps, steps, STAGES)
    return total


@gluon.jit
def reduce_ranks(down, scale, first, ready, ring, operands, steps, RANKS: gl.constexpr, STAGES: gl.constexpr):
    """x A', of as many ranks as a program has."""
    total, _ = _add_products(no_sums(operands), operands, ring, (0, 0, 0), 0, steps, steps, STAGES)
    if scale is not None:
        total *= gl.load(scale)
    hand_over(total, down, first, ready, RANKS)


@gluon.constexpr_function
def _stretches_layout(stretches, warps, layout):
    """Rows lie where they lie in the layout of a product."""
    lanes = min(max(stretches // 4, 1), 32)
    splits_rows = [[basis[0], 0] for basis in layout.cga_layout]
    return gl.BlockedLayout([1, 4], [32 // lanes, lanes], [warps, 1], [1, 0], cga_layout=splits_rows)


@gluon.jit
def row_factors(
    factors, rows, epsilon, ROWS: gl.constexpr, HIDDEN: gl.constexpr, STRETCHES: gl.constexpr, layout: gl.constexpr
):
    """What the rows of a product in this layout are to be multiplied with: norms, or scales. It waits for the kernel
    ahead."""
    tl.extra.cuda.gdc_wait()
    if STRETCHES == 0:
        row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        factor = gl.load(factors + row, mask=row < rows, other=1.0)
    else:
        PADDED: gl.constexpr = triton.next_power_of_2(STRETCHES)
        spread: gl.constexpr = _stretches_layout(PADDED, gl.num_warps(), layout)
        row = gl.arange(0, ROWS, gl.SliceLayout(1, spread))
        stretch = gl.arange(0, PADDED, gl.SliceLayout(0, spread))
        is_there = (row < rows)[:, None] & (stretch < STRETCHES)[None, :]
        squares = gl.load(factors + row[:, None] * STRETCHES + stretch[None, :], mask=is_there, other=0.0)
        total = gl.convert_layout(gl.sum(squares, 1), gl.SliceLayout(1, layout))
        factor = 1.0 / gl.sqrt(total / HIDDEN + epsilon)
    return factor


def choose(busy: Mapping[Choice, int], multiprocessors: int) -> Choice | None:
    """Of ways to divide a layer, with the multiprocessors that each keeps busy: the first with which none has a second
    program, for whose end most would wait. None where many would have nothing to do, or none is enough: other kernels
    are better then."""
    for choice, count in busy.items():
        if count <= multiprocessors:
            return choice if 4 * count > 3 * multiprocessors else None
    return None


def is_streamable(linear: FusedLinear, at_once: int = 1, least: int = 1) -> bool:
    """On a Hopper, with nothing else to add to its product. A step of its sum takes `at_once` tiles, and there are at
    least so many steps."""
    if linear.streamed is None or linear.bias is not None:
        return False
    store, up, _ = linear.streamed
    if store.device.type != "cuda" or torch.cuda.get_device_properties(store.device).major != _HOPPER:
        return False
    depth, hidden = at_once * depth_of(store.dtype), store.shape[1]
    has_kinds = store.dtype in _KINDS and up.dtype == KIND
    return has_kinds and not hidden % depth and hidden >= least * depth


def factors_of(x: Weighed | Rows):
    """What completes a product of these rows, and how many stretches there are to add up for it."""
    return (x.squares, x.squares.shape[1]) if isinstance(x, Weighed) else (x.scale, 0)


def tile_rows(rows: int) -> int:
    """Of a tile of x."""
    return FEW_ROWS if rows <= FEW_ROWS else ROWS


def new_rows(like: torch.Tensor, columns: int, kind: torch.dtype | None = None) -> torch.Tensor:
    """As many, for a product: it reads whole tiles, and to fill up a tile with zeros takes longer than to read it."""
    rows = len(like)
    return like.new_empty(max(rows, ROWS), columns, dtype=kind)[:rows]


def new_weighed(residual: torch.Tensor, stretches: int) -> Weighed:
    """For so many stretches of these rows."""
    squares = residual.new_empty(ROWS, stretches, dtype=torch.float32)
    return Weighed(new_rows(residual, residual.shape[1]), squares)


def depth_of(kind: torch.dtype) -> int:
    """Columns of a tile: of the sums, at once."""
    return WIDTH // kind.itemsize


def tiles_of(matrix: torch.Tensor, rows: int, halves, depth: int | None = None):
    depth = depth or depth_of(matrix.dtype)
    shape = [_rows_there(matrix, rows), matrix.shape[1]]
    layout = tile_layout(rows, depth, halves, matrix.dtype)
    return TensorDescriptor(matrix, shape, matrix.stride(), [rows, depth], layout)


def _rows_there(matrix: torch.Tensor, wanted: int) -> int:
    """Rows of the matrix, and of the memory behind it as many as a tile wants."""
    rows, columns = matrix.shape
    there = matrix.untyped_storage().nbytes() // matrix.element_size() - matrix.storage_offset()
    return max(rows, min(wanted, (there - columns) // matrix.stride(0) + 1))


def tile_layout(rows: int, depth: int, halves, kind: torch.dtype):
    """Of a tile in shared memory."""
    return gl.NVMMASharedLayout.get_default_for([rows, depth], _KINDS[kind], cga_layout=halves)
