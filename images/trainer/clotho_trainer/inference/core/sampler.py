"""One sampled token a row, with the log-probability that the policy gave it."""

from collections.abc import Sequence

import torch

from clotho_trainer.inference.core.engine import Sampling


class Sampler:
    def __init__(self, device: torch.device, end_tokens: frozenset[int], seed: int) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device = device
        self._ends = torch.tensor(sorted(end_tokens), dtype=torch.long, device=device)

    def draw(
        self, logits: torch.Tensor, rows: Sequence[tuple[Sampling, int]]
    ) -> tuple[torch.Tensor, list[int], list[float]]:
        """`rows` holds each row's wishes and how many tokens it has. The log-probabilities are those of the whole
        distribution at the row's temperature: what a training forward computes again."""
        temperatures = [sampling.temperature or 1.0 for sampling, _ in rows]
        scaled = logits.float()
        if any(temperature != 1.0 for temperature in temperatures):
            scaled = scaled / torch.tensor(temperatures, device=self._device)[:, None]
        logprobs = torch.log_softmax(scaled, dim=-1)
        choice = self._choose(self._restricted(logprobs, rows), rows)
        chosen = logprobs.gather(-1, choice[:, None]).squeeze(-1)
        both = torch.stack([choice.double(), chosen.double()]).tolist()  # one transfer for both
        return choice, [int(token) for token in both[0]], both[1]

    def _choose(self, logprobs: torch.Tensor, rows: Sequence[tuple[Sampling, int]]) -> torch.Tensor:
        noise = torch.empty_like(logprobs).exponential_(generator=self._generator)
        sampled = (logprobs - noise.log()).argmax(-1)
        greedy = [sampling.temperature == 0 for sampling, _ in rows]
        if not any(greedy):
            return sampled
        return torch.where(torch.tensor(greedy, device=self._device), logprobs.argmax(-1), sampled)

    def _restricted(self, logprobs: torch.Tensor, rows: Sequence[tuple[Sampling, int]]) -> torch.Tensor:
        unfinished = [index for index, (sampling, made) in enumerate(rows) if made < sampling.min_tokens]
        cut = [index for index, (sampling, _) in enumerate(rows) if sampling.top_p < 1.0 or sampling.top_k]
        if not unfinished and not cut:
            return logprobs
        allowed = logprobs.clone()
        if unfinished and len(self._ends):
            index = torch.tensor(unfinished, device=self._device)
            allowed[index[:, None], self._ends[None, :]] = -torch.inf
        for row in cut:
            allowed[row] = _cut_tail(allowed[row], rows[row][0])
        return allowed


def _cut_tail(logprobs: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    ordered, order = logprobs.sort(descending=True)
    if sampling.top_k:
        ordered[sampling.top_k :] = -torch.inf
    probabilities = ordered.softmax(-1)
    ordered[probabilities.cumsum(-1) - probabilities >= sampling.top_p] = -torch.inf
    return torch.empty_like(logprobs).scatter(-1, order, ordered)
