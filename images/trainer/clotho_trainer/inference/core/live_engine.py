"""What all engines that decode from the live weights share: one thread, a queue, and turns with training.

Weights may change between two tokens of a sequence, never within one; every token is booked to its policy version.
"""

import asyncio
import gc
import logging
import threading
import time
from collections import deque

from clotho_trainer.inference.core.engine import Completion, EngineBusyError, Request
from clotho_trainer.inference.core.sequences import Answer, Sample, Scribe
from clotho_trainer.model.live import LiveWeights

log = logging.getLogger(__name__)

_QUIET = 0.003  # seconds without a request end a swarm of them,
_GATHERING = 0.03  # and so do these since its first: what is read together needs one pass


class LiveEngine:
    """Generates while no step is due, and lets training in between two decode steps. `drains`: training waits until
    the sequences in flight are finished, instead of changing the weights under them."""

    def __init__(self, live: LiveWeights, end_tokens: frozenset[int], *, context: int, drains: bool = False) -> None:
        self._live = live
        self._context = context
        self._drains = drains
        self._scribe = Scribe(live.tokenizer, end_tokens)
        self._waiting: deque[Sample] = deque()
        self._active: list[Sample] = []
        self._work = threading.Condition()
        self._stopping = False
        self._failure: str | None = None
        self._has_published = False
        self._thread = threading.Thread(target=self._run, name="decoder", daemon=True)

    async def start(self) -> None:
        _pardon_what_lasts()
        self._thread.start()

    async def publish(self) -> None:
        """The weights are the ones that were trained. What their first step has imported and compiled lasts, too."""
        if not self._has_published:
            self._has_published = True
            _pardon_what_lasts()

    def problem(self) -> str | None:
        return self._failure

    async def stop(self) -> None:
        with self._work:
            self._stopping = True
            self._work.notify_all()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
            gc.unfreeze()

    async def generate(self, request: Request) -> list[Completion]:
        if self._failure or self._stopping:
            raise EngineBusyError(self._failure or "the engine is shutting down")
        room = self._context - len(request.prompt)
        limit = min(request.sampling.max_tokens, room)
        if limit < 1:
            raise ValueError(f"the prompt has {len(request.prompt)} tokens; the model's context is {self._context}")
        loop = asyncio.get_running_loop()
        answer = Answer(loop, loop.create_future(), request.n)
        with self._work:
            self._waiting.extend(Sample(request, answer, limit) for _ in range(request.n))
            self._work.notify_all()
        return await answer.future

    @property
    def _may_admit(self) -> bool:
        return not self._live.training_is_waiting

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                with self._live.decoding():
                    self._enter()
                    while self._goes_on():
                        self._advance()
        except Exception as error:
            log.exception("the decoder failed")
            self._failure = f"the decoder failed: {error}"
        finally:
            self._abandon(EngineBusyError(self._failure or "the engine is shutting down"))

    def _wait_for_work(self) -> bool:
        with self._work:
            if not self._waiting and not self._active:
                self._work.wait_for(lambda: self._stopping or bool(self._waiting))
                begun = time.monotonic()
                while self._work.wait(_QUIET) and not self._stopping and time.monotonic() - begun < _GATHERING:
                    pass
            return not self._stopping

    def _goes_on(self) -> bool:
        if self._stopping or not (self._waiting or self._active):
            return False
        return not self._live.training_is_waiting or (self._drains and bool(self._active))

    def _enter(self) -> None:
        """The weights may be others than last time."""

    def _advance(self) -> None:
        """Some tokens for every running sequence, and a start for those that wait."""
        raise NotImplementedError

    def _clear(self) -> None:
        """Forget what is cached of the active sequences."""
        raise NotImplementedError

    def _abandon(self, error: Exception) -> None:
        lost = list(self._active)
        if self._stopping or self._failure:
            with self._work:
                lost += self._waiting
                self._waiting.clear()
        self._clear()
        self._active = []
        for sample in lost:
            sample.answer.fail(error)


def _pardon_what_lasts() -> None:
    """A full collection walks through half a million objects of the libraries and stops every thread for 0.3 s: it
    need not look at those again."""
    gc.collect()
    gc.freeze()
