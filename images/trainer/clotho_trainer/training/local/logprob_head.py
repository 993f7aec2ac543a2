"""Log-probabilities of completions without padding, masks or stored logits; exact, and only for a frozen head."""

from typing import Any

import torch
from torch.nn import functional

from clotho_trainer.model.architecture import base_model
from clotho_trainer.training.local import packing

_CHUNK = 2048  # tokens whose logits exist at the same time


def _statistics(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probability of the target, entropy, and the whole distribution in the logits' own precision."""
    wide = logits.float() / temperature
    total = wide.logsumexp(-1, keepdim=True)
    softmax = (wide - total).exp()
    entropies = total.squeeze(-1) - (softmax * wide).sum(-1)
    return (wide.gather(-1, targets) - total).squeeze(-1), entropies, softmax.to(logits.dtype)


_compiled = torch.compile(_statistics)


class LogprobHead(torch.autograd.Function):
    """log p(target) of a frozen head, and its entropy as a figure.

    d log p / d hidden is (W[target] - softmax W) / temperature: it is computed with the forward pass, while the logits
    are there, and the backward pass only scales it.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.empty(len(targets), device=hidden.device)
        entropies = torch.empty_like(logprobs)
        slope = torch.empty_like(hidden)
        statistics = _compiled if hidden.is_cuda else _statistics
        for start in range(0, len(targets), _CHUNK):
            part = slice(start, start + _CHUNK)
            inputs = hidden[part] @ weight.t(), targets[part, None]
            packing.expect_any_length(*inputs, dimension=0)
            logprobs[part], entropies[part], softmax = statistics(*inputs, temperature)
            if ctx.needs_input_grad[0]:
                rows = functional.embedding(targets[part], weight)
                slope[part] = torch.addmm(rows, softmax, weight, alpha=-1)
        ctx.save_for_backward(slope)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return (slope * (gradients[0] / ctx.temperature)[:, None]).to(slope.dtype), None, None, None


def completion_logprobs(model: Any, batch: packing.Packed, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the completions' columns, and the entropies; 0 where there is no token."""
    inner = base_model(model)
    hidden = packing.hidden_states(inner.model, batch)[batch.before]
    weight = inner.lm_head.weight
    with torch.autocast(hidden.device.type, enabled=False):
        values = LogprobHead.apply(hidden.to(weight.dtype), weight, batch.targets, temperature)
    logprobs, entropies = (
        torch.zeros(batch.shape, device=hidden.device).index_put((batch.rows, batch.places), value) for value in values
    )
    return logprobs, entropies
