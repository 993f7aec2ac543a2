"""Continuous batching over the decoder: executes what the scheduler decides."""

import asyncio
import logging
import time
from collections import deque
from typing import ClassVar

import torch

from clotho_trainer.inference.core.block_manager import BlockManager
from clotho_trainer.inference.core.engine import EngineBusyError
from clotho_trainer.inference.core.live_engine import LiveEngine
from clotho_trainer.inference.core.sampler import Sampler
from clotho_trainer.inference.core.scheduler import Prefill, Scheduler, prefill_batches
from clotho_trainer.inference.core.sequences import Sequence
from clotho_trainer.inference.paged.cache import CacheShape
from clotho_trainer.inference.paged.decoder import STEPS, Decoder, Flight
from clotho_trainer.inference.paged.weights import PolicyWeights
from clotho_trainer.model.live import LiveWeights

log = logging.getLogger(__name__)

_PREFILL_TOKENS = 16_384  # read in one pass when many prompts wait
_WATERMARK = 0.25  # free blocks for each running sequence when another is admitted
_KEPT_PROMPTS = 2  # for each row


class FastEngine(LiveEngine):
    name: ClassVar = "fast"

    def __init__(
        self,
        live: LiveWeights,
        weights: PolicyWeights,
        end_tokens: frozenset[int],
        cache: CacheShape,
        *,
        max_rows: int,
        seed: int = 0,
        drains: bool = False,
    ) -> None:
        context = min(len(weights.cos), (cache.blocks - 1) * cache.block_size)
        scheduler = Scheduler(
            BlockManager(cache.blocks, cache.block_size),
            max_running=max_rows,
            max_prefill_tokens=_PREFILL_TOKENS,
            watermark=_WATERMARK,
            kept_prompts=_KEPT_PROMPTS * max_rows,
        )
        super().__init__(live, end_tokens, scheduler, context=context, seed=seed, drains=drains)
        live.modules_decode = False
        self.weights = weights
        self._block_size = cache.block_size
        self._decoder = Decoder(weights, cache, max_rows=max_rows, seed=seed)
        self._sampler = Sampler(live.device, end_tokens, seed)
        self._rows: list[Sequence] = []  # the decoder's
        self._is_stale = False  # they are not the scheduler's
        self._flights: deque[Flight] = deque()  # of these rows; two while the host books what the first has sampled
        self._weights_stamp: tuple[int, int] | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._prepare)
        await super().start()

    def _prepare(self) -> None:
        began = time.monotonic()
        with self._live.decoding():
            self._enter()
            self._decoder.capture()
        log.info("the fast engine is ready after %.1f s", time.monotonic() - began)

    def _enter(self) -> None:
        if self._weights_stamp != self._live.stamp:
            self.weights.refresh()
            self._scheduler.forget_prompts()
            self._weights_stamp = self._live.stamp

    def _advance(self) -> None:
        try:
            self._step()
        except torch.OutOfMemoryError:
            log.warning("out of GPU memory while decoding: %d sequences dropped", len(self._scheduler.running))
            self._give_up(EngineBusyError("out of GPU memory while decoding; retry the request"))
            torch.cuda.empty_cache()

    def _leave(self) -> None:
        while self._flights:
            self._collect()

    def _clear(self) -> None:
        self._flights.clear()

    def _step(self) -> None:
        if self._flights:
            self._run_ahead()
            self._collect()
        else:
            self._begin()
        if self._flights:
            self._flights[-1].wait_for_last_step()  # what arrives meanwhile is seen before more is launched

    def _begin(self) -> None:
        """Nothing is in flight: the rows can change."""
        scheduler = self._scheduler
        self._is_stale |= scheduler.finish_cancelled()
        if self._may_admit:
            self._admit()
        if not scheduler.running:
            return
        needs_sampler = any(sequence.needs_sampler for sequence in scheduler.running)
        steps = 1 if needs_sampler else min(STEPS, max(sequence.room for sequence in scheduler.running))
        scheduler.pass_steps(steps)
        self._is_stale |= scheduler.reserve(steps)
        if self._is_stale:
            self._rows = sorted(scheduler.running, key=lambda each: each.blocks[0])  # what they share is read once
            self._decoder.load(self._rows)
            self._is_stale = False
        if needs_sampler:
            self._draw(self._rows, self._decoder.logits(len(self._rows)))
        else:
            self._flights.append(self._decoder.launch(len(self._rows), steps))

    def _admit(self) -> None:
        """Known prompts need no pass: their last token is decoded as if it had been sampled."""
        known = self._scheduler.admit_known()
        self._copy(known.copies)
        self._is_stale |= bool(known.sequences)
        if not self._scheduler.gathers(STEPS):
            for batch in prefill_batches(self._scheduler.admit(), _PREFILL_TOKENS):
                self._prefill(batch)

    def _run_ahead(self) -> None:
        """Launch more for the same rows, so that the device has work while the host books what is in flight."""
        flying = self._flights[0].steps
        if self._is_stale or not (steps := self._scheduler.steps_ahead(flying, STEPS)):
            return
        self._scheduler.pass_steps(steps)
        if self._scheduler.reserve(flying + steps):
            self._decoder.load_tables(self._rows)
        self._flights.append(self._decoder.launch(len(self._rows), steps))

    def _collect(self) -> None:
        """Blocks of sequences that end here are free at once, though the next flight may still write to them: none is
        handed out before that was collected, as their end has made the rows stale."""
        self._is_stale |= self._write(self._rows, *self._flights.popleft().collect())

    def _prefill(self, prefills: list[Prefill]) -> None:
        """Cache every different past once, and sample the first token of each sequence."""
        logits = self._decoder.prefill(
            [each.past for each in prefills], [each.sequences[0].blocks for each in prefills]
        )
        self._copy([pair for each in prefills for pair in each.block_copies(self._block_size)])
        sequences = [sequence for each in prefills for sequence in each.sequences]
        repeats = torch.tensor([len(each.sequences) for each in prefills], device=logits.device)
        self._draw(sequences, logits.repeat_interleave(repeats, dim=0, output_size=len(sequences)))

    def _copy(self, copies: list[tuple[int, int]]) -> None:
        if copies:
            sources, targets = zip(*copies, strict=True)
            self._decoder.copy_blocks(sources, targets)

    def _draw(self, sequences: list[Sequence], logits: torch.Tensor) -> None:
        drawn = self._sampler.draw(logits, sequences)
        self._is_stale = True
        self._write(sequences, [[token] for token in drawn.tokens], [[value] for value in drawn.logprobs])
