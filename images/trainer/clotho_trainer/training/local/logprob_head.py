"""Log-probabilities of completions without padding, masks or stored logits; exact, and only for a frozen head."""

from typing import Any, NamedTuple

import torch

from clotho_trainer.model.architecture import base_model
from clotho_trainer.model.fp8 import FP8, LARGEST, LEAST, Turned, product, turned_head
from clotho_trainer.training.local import packing

_CHUNK = 2048  # tokens whose logits exist at the same time


class _Statistics(NamedTuple):
    logprobs: torch.Tensor  # of the targets
    entropies: torch.Tensor
    slopes: torch.Tensor  # of each log-probability by each logit
    scales: torch.Tensor | None  # of the slopes' rows, which are in 8 bits then


def _statistics(logits: torch.Tensor, targets: torch.Tensor, temperature: float, *, rounds: bool) -> _Statistics:
    """The largest slope of a row is the target's own, 1 - p: those of all others add up to as much. It is computed from
    log p, as it would be lost in p of confident tokens."""
    wide = logits.float() / temperature
    total = wide.logsumexp(-1, keepdim=True)
    softmax = (wide - total).exp()
    entropies = total.squeeze(-1) - (softmax * wide).sum(-1)
    logprobs = wide.gather(-1, targets) - total
    largest = -torch.expm1(logprobs)
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets
    slopes, scales = torch.where(is_target, largest, -softmax), None
    if rounds:
        scales = largest.clamp(min=LEAST) / LARGEST
        slopes = (slopes / scales).clamp(-LARGEST, LARGEST)
    return _Statistics(logprobs.squeeze(-1), entropies, slopes.to(FP8 if rounds else logits.dtype), scales)


_compiled = torch.compile(_statistics)


class LogprobHead(torch.autograd.Function):
    """log p(target) of a frozen head, and its entropy as a figure.

    d log p / d hidden is (W[target] - softmax W) / temperature: it is computed with the forward pass, while the logits
    are there, and the backward pass only scales it. `turned`: the head for that in 8 bits, where there is one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        turned: Turned | None,
        targets: torch.Tensor,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.empty(len(targets), device=hidden.device)
        entropies = torch.empty_like(logprobs)
        slope = torch.empty_like(hidden)
        statistics = _compiled if hidden.is_cuda else _statistics
        for start in range(0, len(targets), _CHUNK):
            part = slice(start, start + _CHUNK)
            inputs = hidden[part] @ weight.t(), targets[part, None]
            packing.expect_any_length(*inputs, dimension=0)
            found = statistics(*inputs, temperature, rounds=turned is not None)
            logprobs[part], entropies[part] = found.logprobs, found.entropies
            if ctx.needs_input_grad[0]:
                slope[part] = _back(found, weight, turned)
        ctx.save_for_backward(slope)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return (slope * (gradients[0] / ctx.temperature)[:, None]).to(slope.dtype), None, None, None, None


def _back(found: _Statistics, weight: torch.Tensor, turned: Turned | None) -> torch.Tensor:
    if turned is None or found.scales is None:
        return found.slopes @ weight
    return product(found.slopes, found.scales, *turned)


def completion_logprobs(model: Any, batch: packing.Packed, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the completions' columns, and the entropies; 0 where there is no token."""
    inner = base_model(model)
    hidden = packing.hidden_states(inner.model, batch)[batch.before]
    weight = inner.lm_head.weight
    with torch.autocast(hidden.device.type, enabled=False):
        values = LogprobHead.apply(hidden.to(weight.dtype), weight, turned_head(inner), batch.targets, temperature)
    logprobs, entropies = (
        torch.zeros(batch.shape, device=hidden.device).index_put((batch.rows, batch.places), value) for value in values
    )
    return logprobs, entropies
