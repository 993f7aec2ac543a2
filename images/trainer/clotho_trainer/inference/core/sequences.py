"""Samples in the making: what they hold, what ends them, and how they are handed back to the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from clotho_trainer.inference.core.engine import Completion, FinishReason, Request

_STOP_WINDOW = 16  # tokens beyond a stop string's own length in which it may end


@dataclass(eq=False)
class Answer:
    """All samples of one request, handed back when the last is done."""

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


@dataclass(eq=False)
class Sample:
    """One sequence that is being written."""

    request: Request
    answer: Answer
    limit: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[list[int]] = field(default_factory=list)
    stop_string: str | None = None

    @property
    def room(self) -> int:
        return self.limit - len(self.tokens)

    def add(self, tokens: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1][1] += len(tokens)
        else:
            self.versions.append([version, len(tokens)])


class Scribe:
    """Writes what was drawn into samples, and knows when one is complete."""

    def __init__(self, tokenizer: Any, end_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._ends = end_tokens

    def write(
        self, sample: Sample, tokens: Sequence[int], logprobs: Sequence[float], version: int
    ) -> FinishReason | None:
        """Up to the token that ends the sample; what was drawn beyond it is dropped."""
        sampling = sample.request.sampling
        ends = sampling.stop_tokens if sampling.ignore_end else sampling.stop_tokens | self._ends
        room = sample.room
        if not sampling.stop:
            end = next((index for index, token in enumerate(tokens[:room]) if token in ends), None)
            taken = room if end is None else end + 1
            sample.add(tokens[:taken], logprobs[:taken], version)
            return "stop" if end is not None else "length" if len(tokens) >= room else None
        for token, logprob in zip(tokens, logprobs, strict=True):
            sample.add((token,), (logprob,), version)
            if token in ends or self._has_stop_string(sample):
                return "stop"
            if sample.room == 0:
                return "length"
        return None

    def completion(self, sample: Sample, reason: FinishReason) -> Completion:
        text = self._text(sample.tokens)
        if sample.stop_string is not None and sample.stop_string in text:
            text = text.rpartition(sample.stop_string)[0]
        return Completion(
            tokens=tuple(sample.tokens),
            logprobs=tuple(sample.logprobs),
            text=text,
            finish_reason=reason,
            versions=tuple((version, count) for version, count in sample.versions),
            stop_string=sample.stop_string,
        )

    def _has_stop_string(self, sample: Sample) -> bool:
        stops = sample.request.sampling.stop
        tail = self._text(sample.tokens[-(max(map(len, stops)) + _STOP_WINDOW) :])
        sample.stop_string = next((stop for stop in stops if stop in tail), None)
        return sample.stop_string is not None

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
