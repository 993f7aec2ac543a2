"""Decodes with the model's own modules: no second copy, no synchronisation, requests batched as they come."""

import logging
from itertools import groupby

import torch

from clotho_trainer.inference.core.engine import EngineBusyError
from clotho_trainer.inference.core.live_engine import LiveEngine
from clotho_trainer.inference.core.sampler import Sampler
from clotho_trainer.inference.core.sequences import Sample
from clotho_trainer.inference.transformers.ragged import RaggedBatch
from clotho_trainer.model.live import LiveWeights

log = logging.getLogger(__name__)

_PREFILL_TOKENS = 32_768  # read in one pass when many prompts wait


class TransformersEngine(LiveEngine):
    def __init__(
        self,
        live: LiveWeights,
        end_tokens: frozenset[int],
        *,
        context: int,
        max_rows: int,
        seed: int = 0,
        drains: bool = False,
    ) -> None:
        super().__init__(live, end_tokens, context=context, drains=drains)
        self._max_rows = max_rows
        self._next: torch.Tensor | None = None
        self._sampler = Sampler(live.device, end_tokens, seed)
        self._batch = RaggedBatch(live.model)

    def _advance(self) -> None:
        try:
            if self._active and self._next is not None:
                self._next = self._draw(self._batch.step(self._next), self._active)
            if newcomers := self._admit():
                self._begin(newcomers)
        except torch.OutOfMemoryError:
            self._max_rows = max(1, min(len(self._active), self._max_rows) // 2)
            log.warning("out of GPU memory while decoding: at most %d sequences together from now on", self._max_rows)
            self._abandon(EngineBusyError("out of GPU memory while decoding; ask again"))
            torch.cuda.empty_cache()

    def _admit(self) -> list[Sample]:
        newcomers: list[Sample] = []
        tokens = 0
        if not self._may_admit:
            return newcomers
        with self._work:
            while self._waiting and len(self._active) + len(newcomers) < self._max_rows and tokens < _PREFILL_TOKENS:
                sample = self._waiting.popleft()
                if sample.answer.is_unwanted:
                    continue
                if not newcomers or newcomers[-1].request is not sample.request:
                    tokens += len(sample.request.prompt)
                newcomers.append(sample)
        return newcomers

    def _begin(self, newcomers: list[Sample]) -> None:
        """Samples of one request stand next to each other, so their prompt is read once."""
        batches = [list(rows) for _, rows in groupby(newcomers, key=lambda sample: id(sample.request))]
        prompts = [rows[0].request.prompt for rows in batches]
        before, self._active = self._active, [*self._active, *newcomers]
        logits = self._batch.join(prompts, [len(rows) for rows in batches])
        self._next = self._draw(logits, newcomers, before)

    def _draw(
        self, logits: torch.Tensor, samples: list[Sample], others: list[Sample] | None = None
    ) -> torch.Tensor | None:
        """A token for each of `samples`; `others` stand before them in the batch and have theirs already."""
        wishes = [(sample.request.sampling, len(sample.tokens)) for sample in samples]
        choice, tokens, logprobs = self._sampler.draw(logits, wishes)
        following = choice if self._next is None or not others else torch.cat([self._next, choice])
        version, kept = self._live.version, list(range(len(others or ())))
        for index, (sample, token, logprob) in enumerate(zip(samples, tokens, logprobs, strict=True), len(kept)):
            if sample.answer.is_unwanted:
                continue
            reason = self._scribe.write(sample, (token,), (logprob,), version)
            if reason is None:
                kept.append(index)
            else:
                sample.answer.add(self._scribe.completion(sample, reason))
        return self._keep(kept, following)

    def _keep(self, kept: list[int], following: torch.Tensor) -> torch.Tensor | None:
        if len(kept) == len(self._active):
            return following
        self._batch.keep(kept)
        self._active = [self._active[index] for index in kept]
        return following[torch.tensor(kept, device=following.device)] if kept else None

    def _clear(self) -> None:
        self._next = None
        self._batch.clear()
