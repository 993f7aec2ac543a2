"""Decodes with the model's own modules: no second copy, no synchronisation, requests batched as they come."""

import logging
from typing import ClassVar

import torch

from clotho_trainer.inference.core.block_manager import BlockManager
from clotho_trainer.inference.core.engine import EngineBusyError
from clotho_trainer.inference.core.live_engine import LiveEngine
from clotho_trainer.inference.core.sampler import Sampler
from clotho_trainer.inference.core.scheduler import Prefill, Scheduler
from clotho_trainer.inference.core.sequences import Sequence, State
from clotho_trainer.inference.transformers.ragged import RaggedBatch
from clotho_trainer.model.live import LiveWeights

log = logging.getLogger(__name__)

_PREFILL_TOKENS = 32_768  # read in one pass when many prompts wait


class TransformersEngine(LiveEngine):
    """The rows of the batch are the scheduler's running sequences, in this order."""

    name: ClassVar = "transformers"

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
        blocks = BlockManager(max_rows + 1, block_size=context)  # its cache grows as needed: rows are the only limit
        scheduler = Scheduler(blocks, max_running=max_rows, max_prefill_tokens=_PREFILL_TOKENS)
        super().__init__(live, end_tokens, scheduler, context=context, seed=seed, drains=drains)
        self._next = torch.zeros(0, dtype=torch.long, device=live.device)  # the last token of each row
        self._sampler = Sampler(live.device, end_tokens, seed)
        self._batch = RaggedBatch(live.model)

    def _advance(self) -> None:
        scheduler = self._scheduler
        try:
            rows = scheduler.running
            if scheduler.finish_cancelled():
                self._keep(rows)
            if scheduler.running:
                self._draw(scheduler.running, self._batch.step(self._next))
            if self._may_admit and (prefills := scheduler.admit()):
                self._prefill(prefills)
        except torch.OutOfMemoryError:
            scheduler.max_running = max(1, len(scheduler.running) // 2)
            log.warning(
                "out of GPU memory while decoding: at most %d sequences together from now on", scheduler.max_running
            )
            self._give_up(EngineBusyError("out of GPU memory while decoding; retry the request"))
            torch.cuda.empty_cache()

    def _prefill(self, prefills: list[Prefill]) -> None:
        logits = self._batch.join([each.past for each in prefills], [len(each.sequences) for each in prefills])
        self._draw([sequence for each in prefills for sequence in each.sequences], logits)

    def _draw(self, sequences: list[Sequence], logits: torch.Tensor) -> None:
        """A token for each of `sequences`, which are the last rows of the batch; the rows before have theirs."""
        rows = self._scheduler.running
        drawn = self._sampler.draw(logits, sequences)
        self._next = torch.cat([self._next[: len(rows) - len(sequences)], drawn.choice])
        if self._write(sequences, [(token,) for token in drawn.tokens], [(value,) for value in drawn.logprobs]):
            self._keep(rows)

    def _keep(self, rows: list[Sequence]) -> None:
        kept = [index for index, sequence in enumerate(rows) if sequence.state is State.RUNNING]
        self._batch.keep(kept)
        self._next = self._next[torch.tensor(kept, dtype=torch.long, device=self._next.device)]

    def _clear(self) -> None:
        self._next = self._next[:0]
        self._batch.clear()
