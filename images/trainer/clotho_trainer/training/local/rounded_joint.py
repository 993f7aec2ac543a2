"""Packed rows through a base in 8 bits: linear layers with a common input are one product, of rows that are rounded
once. Adapters stay in 16 bits; what they add is added to the product in place, or where gating reads it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from clotho_trainer.inference.paged.linear import FusedFp8Linear, copy_adapters
from clotho_trainer.model.fp8 import product
from clotho_trainer.training.local import gating
from clotho_trainer.training.local.gating import Adapters
from clotho_trainer.training.local.joined import Joined, Place, in_graph, places_of

# Operations for the compiler to leave as they are. As with nf4, without custom_op, whose calls cost more.
_library: Any = torch.library.Library("clotho", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("multiply_rounded(Tensor x, Tensor weight, Tensor scale, Tensor down, Tensor? up) -> (Tensor, Tensor)")
_library.define("gate_adapted(Tensor gate_up, Tensor below, Tensor up, int ranks, int step) -> Tensor")
_library.define(
    "gate_adapted_back(Tensor to_gated, Tensor back, Tensor down, Tensor gate_up, Tensor below, Tensor up, "
    "int ranks, int step) -> Tensor"
)


def _multiply(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, down: torch.Tensor, up: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x W', with (x A') B' where `up` is given, and x A'."""
    below = x @ down.t()
    rows, scales = torch.ops.clotho.round_rows(x)
    result = product(rows, scales, weight, scale).to(x.dtype)
    if up is not None:
        result.addmm_(below, up.t())
    return result, below


def _multiplied(
    x: torch.Tensor, weight: torch.Tensor, _: torch.Tensor, down: torch.Tensor, __: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape[0], weight.shape[0]), x.new_empty(x.shape[0], down.shape[0])


def _gate(gate_up: torch.Tensor, *adapters: Any) -> torch.Tensor:
    return gating.gate_adapted(gate_up, Adapters(*adapters))


def _gated(gate_up: torch.Tensor, *_: Any) -> torch.Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


def _gate_back(
    to_gated: torch.Tensor, back: torch.Tensor, down: torch.Tensor, gate_up: torch.Tensor, *adapters: Any
) -> torch.Tensor:
    return gating.gradient_adapted(to_gated, back, down, gate_up, Adapters(*adapters))


def _gated_back(
    to_gated: torch.Tensor, back: torch.Tensor, down: torch.Tensor, gate_up: torch.Tensor, *adapters: Any
) -> torch.Tensor:
    return torch.empty_like(gate_up)


for _name, _compute, _shape in (
    ("multiply_rounded", _multiply, _multiplied),
    ("gate_adapted", _gate, _gated),
    ("gate_adapted_back", _gate_back, _gated_back),
):
    _library.impl(_name, _compute, "CPU")
    _library.impl(_name, _compute, "CUDA")
    torch.library.register_fake(f"clotho::{_name}", _shape, lib=_library)


class Matrix(NamedTuple):
    weight: torch.Tensor
    turned: torch.Tensor  # the same in the layout of the backward pass
    scale: torch.Tensor
    down: torch.Tensor  # A of all adapters
    up: torch.Tensor  # the scaled B of all, block by block
    ranks: int  # of a module, for gating
    step: int  # from one module's ranks to the next one's
    places: tuple[Place, ...]
    bias: torch.Tensor | None

    def multiply(self, x: torch.Tensor, *, completes: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """The product, with what adapters add unless that is left to what reads it; and x A'."""
        up = self.up if completes else None
        result, below = torch.ops.clotho.multiply_rounded(x, self.weight, self.scale, self.down, up)
        return result if self.bias is None else result + self.bias, below

    def multiply_back(self, slope: torch.Tensor, *, completes: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        down = self.down.t() if completes else None
        to_x, back = torch.ops.clotho.multiply_rounded(slope, self.turned, self.scale, self.up.t(), down)
        return to_x, back

    def to_adapters(
        self, slope: torch.Tensor, back: torch.Tensor, x: torch.Tensor, below: torch.Tensor
    ) -> list[torch.Tensor]:
        to_down, to_up = back.t() @ x, slope.t() @ below
        return [part for place in self.places for part in place.gradients(to_down, to_up)]


_FIELDS = len(Matrix._fields)


class _Multiply(torch.autograd.Function):
    """The matrix has the adapters' values; the parameters themselves only receive their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        ctx.matrix = matrix = Matrix(*rest[:_FIELDS])
        result, below = matrix.multiply(x)
        ctx.save_for_backward(x, below)
        return result

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        matrix, (x, below), slope = ctx.matrix, ctx.saved_tensors, slopes[0].contiguous()
        to_x, back = matrix.multiply_back(slope)
        return to_x, *[None] * _FIELDS, *matrix.to_adapters(slope, back, x, below)


class _GatedPair(torch.autograd.Function):
    """The product with gates beside what they gate, gating, and a second product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        ctx.matrices = first, second = Matrix(*rest[:_FIELDS]), Matrix(*rest[_FIELDS : 2 * _FIELDS])
        gate_up, below = first.multiply(x, completes=False)
        gated = torch.ops.clotho.gate_adapted(gate_up, below, first.up, first.ranks, first.step)
        result, further = second.multiply(gated)
        ctx.save_for_backward(x, below, gate_up, gated, further)
        return result

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (first, second), slope = ctx.matrices, slopes[0].contiguous()
        x, below, gate_up, gated, further = ctx.saved_tensors
        to_gated, back = second.multiply_back(slope, completes=False)
        to_gate_up = torch.ops.clotho.gate_adapted_back(
            to_gated, back, second.down[: second.ranks], gate_up, below, first.up, first.ranks, first.step
        )
        to_x, first_back = first.multiply_back(to_gate_up)
        to_first = first.to_adapters(to_gate_up, first_back, x, below)
        return to_x, *[None] * 2 * _FIELDS, *to_first, *second.to_adapters(slope, back, gated, further)


_multiplied_with = in_graph(_Multiply)
_multiplied_with_pair = in_graph(_GatedPair)


class RoundedJoint(Joined):
    def __init__(self, *linears: FusedFp8Linear) -> None:
        product = _multiplied_with if len(linears) == 1 else _multiplied_with_pair
        super().__init__(linears, [_matrix(linear) for linear in linears], product)
        held = list(zip(linears, self.matrices, strict=True))
        self.held_adapters = [each for linear in linears for each in linear.adapters]
        self.downs = [matrix.down[each.ranks] for linear, matrix in held for each in linear.adapters]
        self.ups = [matrix.up[each.outputs, each.ranks] for linear, matrix in held for each in linear.adapters]


def _matrix(linear: FusedFp8Linear) -> Matrix:
    base = linear.both_ways()
    down = base.weight.new_zeros(linear.rank, base.weight.shape[1], dtype=linear.dtype)
    up = base.weight.new_zeros(linear.width, linear.rank, dtype=linear.dtype)
    return Matrix(*base, down, up, *linear.ranks_of_a_module, places_of(linear), linear.bias)


@torch.no_grad()
def refresh(joints: Sequence[RoundedJoint]) -> None:
    """Take over what training did to the adapters."""
    adapters = [adapter for joint in joints for adapter in joint.held_adapters]
    downs = [down for joint in joints for down in joint.downs]
    copy_adapters(adapters, downs, [up for joint in joints for up in joint.ups])
