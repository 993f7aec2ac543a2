"""What all engines that decode from the live weights share: one thread, a queue, and turns with training.

Weights may change between two tokens of a sequence, never within one; every token is booked to its policy version.
"""

import asyncio
import gc
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence as Many

from clotho_trainer.inference.core.engine import Completion, EngineBusyError, FinishReason, Request, Scores
from clotho_trainer.inference.core.scheduler import Scheduler
from clotho_trainer.inference.core.scoring import score
from clotho_trainer.inference.core.sequences import Sequence, SequenceWriter, State, completion, resolve, settle, stream
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.model.tokenizer import texts_of

log = logging.getLogger(__name__)

# Seconds without a request that end a burst of them, and those since its first that do so in any case.
_BURST = (0.003, 0.03)
_BURST_OF_THOSE_ANSWERED = (0.05, 0.2)  # they ask again once their answers are written and have travelled
_MANY_TOKENS = 1024  # whose text is made in another thread; that of fewer takes no longer than handing them over
_SWITCHING = 5e-5  # seconds that the decoder waits for the interpreter, which it gives away with every operation


class LiveEngine:
    """Generates while no step is due, and lets training in between two decode steps. `drains`: training waits until
    the running sequences are finished, instead of changing the weights under them.

    The decoder's thread alone touches the scheduler and the device; requests reach it through `_arrived`.
    """

    def __init__(
        self,
        live: LiveWeights,
        end_tokens: frozenset[int],
        scheduler: Scheduler,
        *,
        context: int,
        seed: int = 0,
        drains: bool = False,
    ) -> None:
        self._live = live
        self._context = context
        self._drains = drains
        self._end_tokens = end_tokens
        self._scheduler = scheduler
        self._writer = SequenceWriter(live.tokenizer)
        self._arrived: deque[Sequence] = deque()
        self._to_score: deque[tuple[tuple[int, ...], int, asyncio.Future[Scores]]] = deque()
        self._next_seed = seed << 20
        self._work = threading.Condition()
        self._most_running = 0  # sequences at once, in the last turns that followed each other
        self._stopping = False
        self._failure: str | None = None
        self._has_published = False
        self._thread = threading.Thread(target=self._run, name="decoder", daemon=True)

    async def start(self) -> None:
        sys.setswitchinterval(_SWITCHING)
        _freeze_garbage_collection()
        self._thread.start()

    async def publish(self) -> None:
        """The weights are the ones that were trained. What their first step has imported and compiled lasts, too."""
        if not self._has_published:
            self._has_published = True
            _freeze_garbage_collection()

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
        limit = min(request.sampling.max_tokens, self._room_after(request.prompt))
        sampling, loop = request.sampling, asyncio.get_running_loop()
        ends = sampling.stop_tokens if sampling.ignore_end else sampling.stop_tokens | self._end_tokens
        first_seed = self._next_seed if sampling.seed is None else sampling.seed % 2**31
        self._next_seed += request.n
        sequences = [
            Sequence(request, loop.create_future(), limit, ends, index, first_seed + index)
            for index in range(request.n)
        ]
        with self._work:
            self._check_running()
            self._arrived.extend(sequences)
            self._work.notify_all()
        reasons = await asyncio.gather(*(sequence.future for sequence in sequences))
        return list(map(completion, sequences, reasons, await self._texts([sequence.tokens for sequence in sequences])))

    async def _texts(self, answers: list[list[int]]) -> list[str]:
        tokenizer = self._live.tokenizer
        if sum(map(len, answers)) < _MANY_TOKENS:
            return texts_of(tokenizer, answers)
        return await asyncio.to_thread(texts_of, tokenizer, answers)

    async def score(self, tokens: tuple[int, ...], top: int) -> Scores:
        self._room_after(tokens[:-1])
        future: asyncio.Future[Scores] = asyncio.get_running_loop().create_future()
        with self._work:
            self._check_running()
            self._to_score.append((tokens, top, future))
            self._work.notify_all()
        return await future

    def _check_running(self) -> None:
        if self._failure or self._stopping:
            raise EngineBusyError(self._failure or "the engine is shutting down")

    def _room_after(self, prompt: tuple[int, ...]) -> int:
        room = self._context - len(prompt)
        if room < 1:
            raise ValueError(f"the prompt has {len(prompt)} tokens; the model's context is {self._context}")
        return room

    @property
    def _has_work(self) -> bool:
        return bool(self._arrived or self._to_score) or self._scheduler.has_work

    @property
    def _may_admit(self) -> bool:
        return not self._live.training_is_waiting

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                with self._live.decoding():
                    self._enter()
                    while self._should_continue():
                        self._score_next()
                        self._collect_arrived()
                        self._advance()
                        self._most_running = max(self._most_running, len(self._scheduler.running))
                        if not self._scheduler.running:
                            break
                    self._leave()
        except Exception as error:
            log.exception("the decoder failed")
            self._failure = f"the decoder failed: {error}"
        finally:
            with self._work:
                self._stopping = True  # later requests are refused
            self._collect_arrived()
            self._give_up(EngineBusyError(self._failure or "the engine is shutting down"))

    def _wait_for_work(self) -> bool:
        with self._work:
            self._work.wait_for(lambda: self._stopping or self._has_work)
            if not self._scheduler.running:
                self._gather_burst()
                self._most_running = 0
            return not self._stopping

    def _gather_burst(self) -> None:
        """Prompts that are read together need one pass; while answers are written it would take several times as long.
        As a rule who has got answers asks for as many again, so that many end a burst as well."""
        pause, longest = _BURST_OF_THOSE_ANSWERED if self._most_running else _BURST
        end = time.monotonic() + longest
        while not self._stopping and not self._to_score and (left := end - time.monotonic()) > 0:
            came = len(self._arrived) + len(self._scheduler.waiting)
            if self._most_running and came >= self._most_running:
                return
            if not self._work.wait(min(left, pause)):
                return

    def _should_continue(self) -> bool:
        if self._stopping or not self._has_work:
            return False
        return not self._live.training_is_waiting or (self._drains and bool(self._scheduler.running))

    def _collect_arrived(self) -> None:
        if self._arrived:
            with self._work:
                self._scheduler.add(self._arrived)
                self._arrived.clear()

    def _score_next(self) -> None:
        """One a turn, so that scoring never holds sampling up for long; its failure is the request's alone."""
        if not self._to_score:
            return
        tokens, top, future = self._to_score.popleft()
        if future.done():
            return
        try:
            settle(future, score(self._live.model, tokens, top))
        except Exception as error:
            log.exception("scoring %d tokens failed", len(tokens))
            settle(future, EngineBusyError(f"scoring failed: {error}"))

    def _write(self, sequences: Many[Sequence], tokens: Many[Many[int]], logprobs: Many[Many[float]]) -> bool:
        """Append what was sampled, and finish and answer the sequences that are complete; whether there were any. What
        was sampled for a sequence after its end is dropped."""
        finished: list[tuple[Sequence, FinishReason]] = []
        version, write = self._live.version, self._writer.write
        for sequence, drawn, values in zip(sequences, tokens, logprobs, strict=True):
            if sequence.state is not State.RUNNING:
                continue
            reason = write(sequence, drawn, values, version)
            if reason is not None:
                finished.append((sequence, reason))
        has_finished = self._scheduler.finish(sequence for sequence, _ in finished)
        stream(sequences)
        resolve(finished)
        return has_finished

    def _enter(self) -> None:
        """The weights may have changed since the last turn."""

    def _leave(self) -> None:
        """The weights may change from now on: finish what reads them."""

    def _advance(self) -> None:
        """Some tokens for every running sequence, and a start for those that wait."""
        raise NotImplementedError

    def _clear(self) -> None:
        """Forget what is cached of the running sequences."""

    def _give_up(self, error: Exception) -> None:
        lost = self._scheduler.clear(with_waiting=bool(self._stopping or self._failure))
        self._clear()
        resolve((sequence, error) for sequence in lost)
        while self._to_score and (self._stopping or self._failure):
            settle(self._to_score.popleft()[2], error)


def _freeze_garbage_collection() -> None:
    """A full collection walks through half a million objects of the libraries and stops every thread for 0.3 s: those
    need no second visit."""
    gc.collect()
    gc.freeze()
