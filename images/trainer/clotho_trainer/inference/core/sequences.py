"""A sequence from its arrival to its last token: its state, what finishes it, and how it reaches the event loop."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from clotho_trainer.inference.core.engine import Completion, Delta, FinishReason, Request, TopLogprobs

Result = TypeVar("Result")

_STOP_WINDOW = 16  # tokens beyond a stop string's own length in which it may end


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample of a request. The scheduler alone changes `state` and `blocks`."""

    request: Request
    future: "asyncio.Future[FinishReason]"
    limit: int  # most tokens after the prompt
    ends: frozenset[int] = frozenset()  # tokens that finish it
    index: int = 0  # among the samples of its request
    seed: int = 0
    state: State = State.WAITING
    blocks: list[int] = field(default_factory=list)  # its block table
    cached: int = 0  # tokens of its past that were in its blocks when it was admitted: they are not written again
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    versions: list[list[int]] = field(default_factory=list)
    stop_string: str | None = None
    streamed: int = 0  # tokens handed to a streaming client

    @property
    def is_cancelled(self) -> bool:
        return self.future.done()

    @property
    def past(self) -> tuple[int, ...]:
        return (*self.request.prompt, *self.tokens) if self.tokens else self.request.prompt

    @property
    def last_token(self) -> int:
        return self.tokens[-1] if self.tokens else self.request.prompt[-1]

    @property
    def position(self) -> int:
        """Of the last token, whose keys and values are not cached yet."""
        return len(self.request.prompt) + len(self.tokens) - 1

    @property
    def last_position(self) -> int:
        return len(self.request.prompt) + self.limit - 2

    @property
    def room(self) -> int:
        return self.limit - len(self.tokens)

    @property
    def needs_sampler(self) -> bool:
        """The decoder draws from the whole distribution; everything else is drawn from the logits, step by step."""
        sampling = self.request.sampling
        return bool(
            sampling.reshapes
            or sampling.top_logprobs
            or sampling.seed is not None
            or len(self.tokens) < sampling.min_tokens
        )

    def add(self, tokens: Many[int], logprobs: Many[float], version: int) -> None:
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1][1] += len(tokens)
        else:
            self.versions.append([version, len(tokens)])

    def take_delta(self) -> Delta:
        start, self.streamed = self.streamed, len(self.tokens)
        return Delta(self.index, self.tokens[start:], self.logprobs[start:], self.top_logprobs[start:])


class SequenceWriter:
    """Appends sampled tokens to sequences and decides when one is finished."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def write(self, sequence: Sequence, tokens: Many[int], logprobs: Many[float], version: int) -> FinishReason | None:
        """Up to the token that finishes the sequence; what was sampled beyond it is dropped."""
        ends, room = sequence.ends, sequence.room
        if not sequence.request.sampling.stop:
            end = next((index for index, token in enumerate(tokens[:room]) if token in ends), None)
            taken = room if end is None else end + 1
            sequence.add(tokens[:taken], logprobs[:taken], version)
            return "stop" if end is not None else "length" if len(tokens) >= room else None
        for token, logprob in zip(tokens, logprobs, strict=True):
            sequence.add((token,), (logprob,), version)
            if token in ends or self._has_stop_string(sequence):
                return "stop"
            if sequence.room == 0:
                return "length"
        return None

    def _has_stop_string(self, sequence: Sequence) -> bool:
        stops = sequence.request.sampling.stop
        tokens = sequence.tokens[-(max(map(len, stops)) + _STOP_WINDOW) :]
        tail = str(self._tokenizer.decode(tokens, skip_special_tokens=True))
        sequence.stop_string = next((stop for stop in stops if stop in tail), None)
        return sequence.stop_string is not None


def completion(sequence: Sequence, reason: FinishReason, text: str) -> Completion:
    """`text` is that of all its tokens."""
    if sequence.stop_string is not None and sequence.stop_string in text:
        text = text.rpartition(sequence.stop_string)[0]
    return Completion(
        tokens=tuple(sequence.tokens),
        logprobs=tuple(sequence.logprobs),
        text=text,
        finish_reason=reason,
        versions=tuple((version, count) for version, count in sequence.versions),
        stop_string=sequence.stop_string,
        top_logprobs=tuple(sequence.top_logprobs),
    )


def stream(sequences: Iterable[Sequence]) -> None:
    """Hand new tokens to the clients that stream, from the decoder's thread. The last ones come with the completion,
    which has the text without the stop string."""
    for sequence in sequences:
        if (on_delta := sequence.request.on_delta) and sequence.state is State.RUNNING:
            sequence.future.get_loop().call_soon_threadsafe(on_delta, sequence.take_delta())


def resolve(outcomes: Iterable[tuple[Sequence, FinishReason | Exception]]) -> None:
    """Answer the sequences' futures from the decoder's thread, with one wake-up of each event loop."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Sequence, FinishReason | Exception]]] = defaultdict(list)
    for sequence, outcome in outcomes:
        by_loop[sequence.future.get_loop()].append((sequence, outcome))
    for loop, entries in by_loop.items():
        loop.call_soon_threadsafe(_set_all, loop, deque(entries))


def _set_all(loop: asyncio.AbstractEventLoop, entries: "deque[tuple[Sequence, FinishReason | Exception]]") -> None:
    """One request in each round of the loop: its answer takes milliseconds to write, and new requests come between."""
    request = entries[0][0].request
    while entries and entries[0][0].request is request:
        sequence, outcome = entries.popleft()
        _set(sequence.future, outcome)
    if entries:
        loop.call_soon(_set_all, loop, entries)


def settle(future: "asyncio.Future[Result]", outcome: Result | Exception) -> None:
    """Answer one future from another thread."""
    future.get_loop().call_soon_threadsafe(_set, future, outcome)


def _set(future: "asyncio.Future[Result]", outcome: Result | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
