"""What the routes need once the model is loaded: the engine, the tokenizer, and how prompts become token ids."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from clotho_trainer.inference.answers import Decode, Scored
from clotho_trainer.inference.core.engine import Completion, Engine, EngineBusyError, Request, Sampling
from clotho_trainer.inference.requests import BadRequestError, Prompt, prompts_of
from clotho_trainer.inference.streaming import Stream

_MOST_COMPLETIONS: Final = 4096  # of one request
_MOST_IN_FLIGHT: Final = 65_536


class InFlight:
    """Completions that are being generated or wait for it. Each takes memory, however short the request was."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def holding(self, n: int) -> Iterator[None]:
        if self.count + n > _MOST_IN_FLIGHT:
            raise EngineBusyError(f"{self.count} completions are in flight; the limit is {_MOST_IN_FLIGHT}")
        self.count += n
        try:
            yield
        finally:
            self.count -= n


@dataclass(frozen=True)
class Service:
    engine: Engine
    tokenizer: Any
    model: str
    context: int
    vocabulary: int
    temperature: float
    count_tokens: Callable[[int], None] = lambda _: None
    count_sequences: Callable[[int], None] = lambda _: None  # more, or with a minus fewer, are in flight
    created: int = field(default_factory=lambda: int(time.time()))
    in_flight: InFlight = field(default_factory=InFlight)

    @property
    def decode(self) -> Decode:
        return lambda token: _piece(self.tokenizer, token)

    def check_model(self, name: str | None) -> None:
        if name not in (None, "", self.model):
            raise BadRequestError(f"the model {name!r} does not exist; this server has {self.model}", status=404)

    def check_limit(self, prompt: Sequence[int], max_tokens: int) -> None:
        """vLLM refuses what cannot fit instead of cutting it short."""
        if len(prompt) + max_tokens > self.context:
            raise BadRequestError(
                f"the prompt has {len(prompt)} tokens; the model's context is {self.context}: "
                f"max_tokens {max_tokens} does not fit"
            )

    def token_lists(self, prompt: Prompt) -> list[list[int]]:
        return [self.check_tokens(self._tokens(entry)) for entry in prompts_of(prompt)]

    def check_count(self, prompts: int, n: int) -> None:
        if prompts * n > _MOST_COMPLETIONS:
            raise BadRequestError(f"{prompts} prompts with n {n} are more than {_MOST_COMPLETIONS} completions")

    def check_tokens(self, tokens: Sequence[int]) -> list[int]:
        if not tokens:
            raise BadRequestError("the prompt is empty")
        if min(tokens) < 0 or max(tokens) >= self.vocabulary:
            raise BadRequestError(f"a token id of the prompt is outside 0..{self.vocabulary - 1}")
        return list(tokens)

    async def sample(self, prompts: Sequence[list[int]], sampling: Sampling, n: int) -> list[list[Completion]]:
        """The samples of each prompt."""
        self.check_count(len(prompts), n)
        if len(prompts) == 1:
            return [await self._sample(prompts[0], sampling, n)]
        return list(await asyncio.gather(*(self._sample(prompt, sampling, n) for prompt in prompts)))

    def stream(self, prompts: Sequence[list[int]], sampling: Sampling, n: int) -> Stream:
        self.check_count(len(prompts), n)
        return Stream(self.generate, self.tokenizer, prompts, sampling, n)

    async def generate(self, request: Request) -> list[Completion]:
        with self.in_flight.holding(request.n):
            self.count_sequences(request.n)
            try:
                return await self.engine.generate(request)
            finally:
                self.count_sequences(-request.n)

    async def score(self, prompts: Sequence[list[int]], top: int) -> list[Scored]:
        scores = await asyncio.gather(*(self.engine.score(tuple(prompt), top) for prompt in prompts))
        return [Scored.prompt(prompt, each) for prompt, each in zip(prompts, scores, strict=True)]

    def count(self, completions: Sequence[Completion]) -> None:
        self.count_tokens(sum(len(completion.tokens) for completion in completions))

    async def _sample(self, prompt: list[int], sampling: Sampling, n: int) -> list[Completion]:
        completions = await self.generate(Request(tuple(prompt), sampling, n))
        self.count(completions)
        return completions

    def _tokens(self, entry: str | list[int]) -> Sequence[int]:
        if not isinstance(entry, str):
            return entry
        tokens: list[int] = self.tokenizer(entry)["input_ids"]
        return tokens


@lru_cache(maxsize=300_000)  # a vocabulary; decoding token by token would hold the decoder up
def _piece(tokenizer: Any, token: int) -> str:
    return str(tokenizer.decode([token]))
