"""silu(gate) * up over rows in which gate and up lie side by side, and its gradient, in one pass over memory. Results
have room for `ranks` more columns."""

import torch
from torch.nn import functional


def gate(gate_up: torch.Tensor, ranks: int) -> torch.Tensor:
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
