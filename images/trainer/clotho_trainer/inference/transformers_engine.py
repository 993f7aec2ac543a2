"""Decodes from the live weights in this process: no second copy, no synchronisation, requests batched as they come.

Weights may change between two tokens of a sequence, never within one; every token is booked to its policy version.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

import torch

from clotho_trainer.inference.engine import Completion, EngineBusyError, FinishReason, Request
from clotho_trainer.inference.ragged import RaggedBatch
from clotho_trainer.inference.sampler import Sampler
from clotho_trainer.live import LiveWeights

log = logging.getLogger(__name__)

_PREFILL_TOKENS = 32_768  # read in one pass when many prompts wait
_STOP_WINDOW = 16  # tokens beyond a stop string's own length in which it may end


@dataclass(eq=False)
class _Sequence:
    """One sample in the making."""

    request: Request
    answer: "_Answer"
    limit: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[list[int]] = field(default_factory=list)
    stop_string: str | None = None

    def add(self, token: int, logprob: float, version: int) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1][1] += 1
        else:
            self.versions.append([version, 1])


@dataclass(eq=False)
class _Answer:
    """All samples of one request, handed back to the event loop when the last is done."""

    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[list[Completion]]"
    missing: int
    completions: list[Completion] = field(default_factory=list)

    @property
    def is_unwanted(self) -> bool:
        return self.future.done()

    def add(self, completion: Completion) -> None:
        self.completions.append(completion)
        self.missing -= 1
        if self.missing == 0:
            self._deliver(lambda: self.future.set_result(self.completions))

    def fail(self, error: Exception) -> None:
        self._deliver(lambda: self.future.set_exception(error))

    def _deliver(self, action: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(lambda: None if self.future.done() else action())


class TransformersEngine:
    def __init__(
        self, live: LiveWeights, end_tokens: frozenset[int], *, context: int, max_rows: int, seed: int = 0
    ) -> None:
        self._live = live
        self._ends = end_tokens
        self._context = context
        self._max_rows = max_rows
        self._waiting: deque[_Sequence] = deque()
        self._active: list[_Sequence] = []
        self._next: torch.Tensor | None = None
        self._work = threading.Condition()
        self._stopping = False
        self._failure: str | None = None
        self._sampler = Sampler(live.device, end_tokens, seed)
        self._batch = RaggedBatch(live.model)
        self._thread = threading.Thread(target=self._run, name="decoder", daemon=True)

    async def start(self) -> None:
        self._thread.start()

    async def publish(self) -> None:
        """Nothing to do: the weights are the ones that were trained."""

    def problem(self) -> str | None:
        return self._failure

    async def stop(self) -> None:
        with self._work:
            self._stopping = True
            self._work.notify_all()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    async def generate(self, request: Request) -> list[Completion]:
        if self._failure or self._stopping:
            raise EngineBusyError(self._failure or "the engine is shutting down")
        room = self._context - len(request.prompt)
        limit = min(request.sampling.max_tokens, room)
        if limit < 1:
            raise ValueError(f"the prompt has {len(request.prompt)} tokens; the model's context is {self._context}")
        loop = asyncio.get_running_loop()
        answer = _Answer(loop, loop.create_future(), request.n)
        with self._work:
            self._waiting.extend(_Sequence(request, answer, limit) for _ in range(request.n))
            self._work.notify_all()
        return await answer.future

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                with self._live.decoding():
                    while self._has_work() and not self._live.training_is_waiting:
                        self._advance()
        except Exception as error:
            log.exception("the decoder failed")
            self._failure = f"the decoder failed: {error}"
        finally:
            self._abandon(EngineBusyError(self._failure or "the engine is shutting down"))

    def _wait_for_work(self) -> bool:
        with self._work:
            self._work.wait_for(lambda: self._stopping or self._has_work())
            return not self._stopping

    def _has_work(self) -> bool:
        return bool(self._waiting or self._active) and not self._stopping

    def _advance(self) -> None:
        """One token for every running sequence, and a start for those that wait."""
        try:
            if self._active and self._next is not None:
                self._next = self._draw(self._batch.step(self._next), self._active)
                self._retire()
            if newcomers := self._admit():
                self._begin(newcomers)
        except torch.OutOfMemoryError:
            self._max_rows = max(1, min(len(self._active), self._max_rows) // 2)
            log.warning("out of GPU memory while decoding: at most %d sequences together from now on", self._max_rows)
            self._abandon(EngineBusyError("out of GPU memory while decoding; ask again"))
            torch.cuda.empty_cache()

    def _admit(self) -> list[_Sequence]:
        newcomers: list[_Sequence] = []
        tokens = 0
        with self._work:
            while self._waiting and len(self._active) + len(newcomers) < self._max_rows and tokens < _PREFILL_TOKENS:
                sequence = self._waiting.popleft()
                if sequence.answer.is_unwanted:
                    continue
                if not newcomers or newcomers[-1].request is not sequence.request:
                    tokens += len(sequence.request.prompt)
                newcomers.append(sequence)
        return newcomers

    def _begin(self, newcomers: list[_Sequence]) -> None:
        """Samples of one request stand next to each other, so their prompt is read once."""
        batches = [list(rows) for _, rows in groupby(newcomers, key=lambda sequence: id(sequence.request))]
        prompts = [rows[0].request.prompt for rows in batches]
        self._active = [*self._active, *newcomers]
        drawn = self._draw(self._batch.join(prompts, [len(rows) for rows in batches]), newcomers)
        self._next = drawn if self._next is None else torch.cat([self._next, drawn])
        self._retire()

    def _draw(self, logits: torch.Tensor, sequences: list[_Sequence]) -> torch.Tensor:
        wishes = [(sequence.request.sampling, len(sequence.tokens)) for sequence in sequences]
        choice, tokens, logprobs = self._sampler.draw(logits, wishes)
        version = self._live.version
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            sequence.add(token, logprob, version)
        return choice

    def _retire(self) -> None:
        kept: list[int] = []
        for index, sequence in enumerate(self._active):
            if sequence.answer.is_unwanted:
                continue
            reason = self._finish_reason(sequence)
            if reason is None:
                kept.append(index)
            else:
                sequence.answer.add(self._completion(sequence, reason))
        if len(kept) == len(self._active):
            return
        self._batch.keep(kept)
        self._active = [self._active[index] for index in kept]
        self._next = (
            self._next[torch.tensor(kept, device=self._next.device)] if kept and self._next is not None else None
        )

    def _finish_reason(self, sequence: _Sequence) -> FinishReason | None:
        sampling, token = sequence.request.sampling, sequence.tokens[-1]
        if token in sampling.stop_tokens or (token in self._ends and not sampling.ignore_end):
            return "stop"
        if sampling.stop:
            tail = self._text(sequence.tokens[-(max(map(len, sampling.stop)) + _STOP_WINDOW) :])
            sequence.stop_string = next((stop for stop in sampling.stop if stop in tail), None)
            if sequence.stop_string is not None:
                return "stop"
        return "length" if len(sequence.tokens) >= sequence.limit else None

    def _completion(self, sequence: _Sequence, reason: FinishReason) -> Completion:
        text = self._text(sequence.tokens)
        if sequence.stop_string is not None and sequence.stop_string in text:
            text = text.rpartition(sequence.stop_string)[0]
        return Completion(
            tokens=tuple(sequence.tokens),
            logprobs=tuple(sequence.logprobs),
            text=text,
            finish_reason=reason,
            versions=tuple((version, count) for version, count in sequence.versions),
            stop_string=sequence.stop_string,
        )

    def _text(self, tokens: list[int]) -> str:
        return str(self._live.tokenizer.decode(tokens, skip_special_tokens=True))

    def _abandon(self, error: Exception) -> None:
        lost = list(self._active)
        if self._stopping or self._failure:
            with self._work:
                lost += self._waiting
                self._waiting.clear()
        self._active, self._next = [], None
        self._batch.clear()
        for sequence in lost:
            sequence.answer.fail(error)
