"""Layers of the engine whose matrices hold several modules and their adapters, as modules that training calls."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from clotho_trainer.inference.paged.linear import FusedLinear

Product = Callable[..., torch.Tensor]


class Place(NamedTuple):
    """Of an adapter: its rows of A, its rows of B, and what B is scaled by."""

    ranks: tuple[int, int]
    outputs: tuple[int, int]
    scaling: float

    def gradients(self, to_down: torch.Tensor, to_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of its A and its B, from those of the joined ones."""
        ranks, outputs = slice(*self.ranks), slice(*self.outputs)
        return to_down[ranks].float(), to_up[outputs, ranks].float() * self.scaling


def places_of(linear: FusedLinear) -> tuple[Place, ...]:
    return tuple(
        Place((each.ranks.start, each.ranks.stop), (each.outputs.start, each.outputs.stop), each.scaling)
        for each in linear.adapters
    )


def in_graph(function: type[torch.autograd.Function]) -> Product:
    """The function for compiled layers. As with fp8: the compiler must not read it itself."""

    def multiplied(*arguments: Any) -> torch.Tensor:
        result: torch.Tensor = function.apply(*arguments)
        return result

    torch.compiler.allow_in_graph(multiplied)  # type: ignore[no-untyped-call]
    return multiplied


class Joined(torch.nn.Module):
    """`product` takes rows, then the fields of each layer's matrix, then the adapters, which get their gradients."""

    def __init__(self, linears: Sequence[FusedLinear], matrices: Sequence[Any], product: Product) -> None:
        super().__init__()
        self.matrices = list(matrices)
        self.adapters = [part for each in linears for adapter in each.adapters for part in (adapter.down, adapter.up)]
        self._dtype = linears[0].dtype
        self._product = product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1]).to(self._dtype)
        parts = [part for matrix in self.matrices for part in matrix]
        return self._product(flat, *parts, *self.adapters).view(*x.shape[:-1], -1)
