"""One sampled token a row, with the log-probability that the policy gave it."""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch

from clotho_trainer.inference.core.engine import Sampling, TopLogprobs
from clotho_trainer.inference.core.sequences import Sequence


@dataclass(frozen=True, slots=True)
class Drawn:
    choice: torch.Tensor  # the tokens, on the device
    tokens: list[int]
    logprobs: list[float]


class Sampler:
    def __init__(self, device: torch.device, end_tokens: frozenset[int], seed: int) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device = device
        self._ends = torch.tensor(sorted(end_tokens), dtype=torch.long, device=device)

    def draw(self, logits: torch.Tensor, sequences: Many[Sequence]) -> Drawn:
        """The log-probabilities are those of the whole distribution at the row's temperature: what a training forward
        computes again. Alternatives that a sequence asked for are appended to it."""
        samplings = [sequence.request.sampling for sequence in sequences]
        temperatures = [sampling.temperature or 1.0 for sampling in samplings]
        scaled = logits.float()
        if any(temperature != 1.0 for temperature in temperatures):
            scaled = scaled / torch.tensor(temperatures, device=self._device)[:, None]
        logprobs = torch.log_softmax(scaled, dim=-1)
        choice = self._choose(self._reshaped(scaled, logprobs, sequences), sequences)
        chosen = logprobs.gather(-1, choice[:, None]).squeeze(-1)
        _add_alternatives(logprobs, sequences)
        both = torch.stack([choice.double(), chosen.double()]).tolist()  # one transfer for both
        return Drawn(choice, [int(token) for token in both[0]], both[1])

    def _choose(self, scores: torch.Tensor, sequences: Many[Sequence]) -> torch.Tensor:
        noise = torch.empty_like(scores).exponential_(generator=self._generator)
        for row, sequence in enumerate(sequences):
            if sequence.request.sampling.seed is not None:
                seed = (sequence.seed * 1_000_003 + sequence.position) % 2**31  # a CPU generator reads 32 bits
                noise[row].exponential_(generator=torch.Generator(self._device).manual_seed(seed))
        sampled = (scores - noise.log()).argmax(-1)
        greedy = [sequence.request.sampling.temperature == 0 for sequence in sequences]
        if not any(greedy):
            return sampled
        return torch.where(torch.tensor(greedy, device=self._device), scores.argmax(-1), sampled)

    def _reshaped(self, scaled: torch.Tensor, logprobs: torch.Tensor, sequences: Many[Sequence]) -> torch.Tensor:
        unfinished = [row for row, each in enumerate(sequences) if len(each.tokens) < each.request.sampling.min_tokens]
        reshaped = [row for row, each in enumerate(sequences) if each.request.sampling.reshapes]
        if not unfinished and not reshaped:
            return logprobs
        scores = logprobs.clone()
        for row in reshaped:
            scores[row] = _with_penalties(scaled[row], sequences[row])
        if unfinished and len(self._ends):
            index = torch.tensor(unfinished, device=self._device)
            scores[index[:, None], self._ends[None, :]] = -torch.inf
        for row in reshaped:
            scores[row] = _without_tail(scores[row], sequences[row].request.sampling)
        return scores


def _with_penalties(scaled: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """Biases and penalties belong to the logits before the temperature divides them."""
    sampling = sequence.request.sampling
    scores, temperature = scaled.clone(), sampling.temperature or 1.0
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*sequence.request.prompt, *sequence.tokens}), device=scores.device)
        penalty, values = sampling.repetition_penalty, scores[seen]
        scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if sequence.tokens and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = torch.bincount(torch.tensor(sequence.tokens, device=scores.device), minlength=len(scores))
        penalties = sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts
        scores -= penalties / temperature
    for token, bias in sampling.logit_bias:
        scores[token] += bias / temperature
    return scores


def _without_tail(scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    if sampling.top_p >= 1.0 and not sampling.top_k and not sampling.min_p:
        return scores
    ordered, order = scores.sort(descending=True)
    if sampling.top_k:
        ordered[sampling.top_k :] = -torch.inf
    probabilities = ordered.softmax(-1)
    is_tail = probabilities.cumsum(-1) - probabilities >= sampling.top_p
    ordered[is_tail | (probabilities < sampling.min_p * probabilities[0])] = -torch.inf
    return torch.empty_like(scores).scatter(-1, order, ordered)


def _add_alternatives(logprobs: torch.Tensor, sequences: Many[Sequence]) -> None:
    rows = [row for row, each in enumerate(sequences) if each.request.sampling.top_logprobs]
    if not rows:
        return
    most = max(sequences[row].request.sampling.top_logprobs for row in rows)
    for row, top in zip(rows, top_of(logprobs[rows], most), strict=True):
        sequences[row].top_logprobs.append(top[: sequences[row].request.sampling.top_logprobs])


def top_of(logprobs: torch.Tensor, count: int) -> list[TopLogprobs]:
    """The likeliest `count` tokens of each row."""
    values, tokens = logprobs.topk(min(count, logprobs.shape[-1]), dim=-1)
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return [tuple(zip(row_tokens, row_values, strict=True)) for row_tokens, row_values in pairs]
