"""Answers as server-sent events: text as it is sampled, and one finished choice after the other."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from clotho_trainer.inference.answers import Scored
from clotho_trainer.inference.core.engine import Completion, Delta, EngineBusyError, Request, Sampling

_REPLACEMENT = "\ufffd"  # what a decoder writes for the first bytes of a character


class Detokenizer:
    """Text of a growing sequence, held back while a character or a stop string may still be incomplete."""

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._held_back = max(map(len, stops), default=1) - 1
        self._tokens: list[int] = []
        self._start = self._read = 0  # tokens before `_read` are in `_text`; those from `_start` on are its context
        self._text = ""
        self._sent = 0

    def add(self, tokens: Sequence[int]) -> str:
        self._tokens += tokens
        before = self._decode(self._tokens[self._start : self._read])
        after = self._decode(self._tokens[self._start :])
        if len(after) > len(before) and not after.endswith(_REPLACEMENT):
            self._text += after[len(before) :]
            self._start, self._read = self._read, len(self._tokens)
        return self._take(len(self._text) - self._held_back)

    def finish(self, text: str) -> str:
        """The rest of the final text."""
        self._text = text
        return self._take(len(text))

    def _take(self, end: int) -> str:
        start, self._sent = self._sent, max(end, self._sent)
        return self._text[start : self._sent]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


@dataclass(slots=True)
class Piece:
    """What is new in one choice; the last piece has its completion."""

    index: int
    text: str
    scored: Scored
    completion: Completion | None = None


@dataclass
class _Choice:
    detokenizer: Detokenizer
    tokens: int = 0


@dataclass
class Stream:
    """Pieces of all choices of the prompts, in the order in which they are sampled."""

    generate: Callable[[Request], Awaitable[list[Completion]]]
    tokenizer: Any
    prompts: Sequence[Sequence[int]]
    sampling: Sampling
    n: int
    completions: list[Completion] = field(default_factory=list)
    _queue: asyncio.Queue[tuple[int, Delta | Completion] | None] = field(default_factory=asyncio.Queue)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Raises what the engine raises; leaving it early cancels the requests."""
        choices = [_Choice(Detokenizer(self.tokenizer, self.sampling.stop)) for _ in range(self.n * len(self.prompts))]
        generating = asyncio.create_task(self._generate())
        try:
            while (event := await self._queue.get()) is not None:
                index, news = event
                piece = _piece(index, news, choices[index])
                if piece.text or piece.scored.tokens or piece.completion:
                    yield piece
            self.completions = await generating
        finally:
            generating.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await generating

    async def _generate(self) -> list[Completion]:
        async def one(offset: int, prompt: Sequence[int]) -> list[Completion]:
            def on_delta(delta: Delta) -> None:
                self._queue.put_nowait((offset + delta.index, delta))

            completions = await self.generate(Request(tuple(prompt), self.sampling, self.n, on_delta))
            for index, completion in enumerate(completions):
                self._queue.put_nowait((offset + index, completion))
            return completions

        try:
            answers = await asyncio.gather(*(one(self.n * place, each) for place, each in enumerate(self.prompts)))
            return [completion for answer in answers for completion in answer]
        finally:
            self._queue.put_nowait(None)


def _piece(index: int, news: Delta | Completion, choice: _Choice) -> Piece:
    if isinstance(news, Delta):
        choice.tokens += len(news.tokens)
        scored = Scored(news.tokens, news.logprobs, news.top_logprobs)
        return Piece(index, choice.detokenizer.add(news.tokens), scored)
    start, choice.tokens = choice.tokens, len(news.tokens)
    rest = Scored(news.tokens[start:], news.logprobs[start:], news.top_logprobs[start:])
    return Piece(index, choice.detokenizer.finish(news.text), rest, news)


async def send_events(request: web.Request, bodies: AsyncIterator[object]) -> web.StreamResponse:
    """The response begins with the first body, so that a refused request is an ordinary error."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    try:
        async for body in bodies:
            if not response.prepared:
                await response.prepare(request)
            await response.write(b"data: " + msgspec.json.encode(body) + b"\n\n")
    except (EngineBusyError, ValueError) as error:
        if not response.prepared:
            raise
        await response.write(b"data: " + msgspec.json.encode({"error": {"message": str(error)}}) + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response
