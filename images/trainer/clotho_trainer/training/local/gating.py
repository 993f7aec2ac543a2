"""silu(gate) * up over rows in which gate and up lie side by side, and its gradient, in one pass over memory."""

from typing import NamedTuple

import torch
from torch.nn import functional


class Adapters(NamedTuple):
    """What is still to be added to gates and to what they gate: `below` times `up` transposed."""

    below: torch.Tensor  # x A'
    up: torch.Tensor  # the scaled B of the gates and, under it, of what they gate
    ranks: int  # of each of the two
    step: int  # from the gates' ranks to the others'

    def added_to(self, gate_up: torch.Tensor) -> torch.Tensor:
        return gate_up + self.below @ self.up.t()


def gate(gate_up: torch.Tensor, ranks: int) -> torch.Tensor:
    """The result has room for `ranks` more columns, as that of `gradient`."""
    width = gate_up.shape[1] // 2
    result = gate_up.new_empty(len(gate_up), width + ranks)
    if result.is_cuda:
        from clotho_trainer.training.local import gating_kernels

        gating_kernels.gate(gate_up, result)
    else:
        gates, up = gate_up.chunk(2, -1)
        result[:, :width] = functional.silu(gates) * up
    return result


def gradient(to_gated: torch.Tensor, gate_up: torch.Tensor, ranks: int) -> torch.Tensor:
    width = gate_up.shape[1] // 2
    result = gate_up.new_empty(len(gate_up), 2 * width + ranks)
    if result.is_cuda:
        from clotho_trainer.training.local import gating_kernels

        gating_kernels.gradient(to_gated, gate_up, result)
    else:
        gates, up = gate_up.chunk(2, -1)
        share = gates.sigmoid()
        result[:, :width] = to_gated * up * share * (1 + gates * (1 - share))
        result[:, width : 2 * width] = to_gated * gates * share
    return result


def gate_adapted(gate_up: torch.Tensor, adapters: Adapters) -> torch.Tensor:
    """The same, of rows that lack what adapters add."""
    if not gate_up.is_cuda:
        return gate(adapters.added_to(gate_up), 0)
    from clotho_trainer.training.local import adapted_gating_kernels

    return adapted_gating_kernels.gate(gate_up, *adapters)


def gradient_adapted(
    to_gated: torch.Tensor, back: torch.Tensor, down: torch.Tensor, gate_up: torch.Tensor, adapters: Adapters
) -> torch.Tensor:
    """The gradient, too, lacks what an adapter adds: `back` times `down`."""
    if not gate_up.is_cuda:
        return gradient(to_gated + back[:, : len(down)] @ down, adapters.added_to(gate_up), 0)
    from clotho_trainer.training.local import adapted_gating_kernels

    return adapted_gating_kernels.gradient(to_gated, back, down, gate_up, *adapters)
