"""The interface of every engine: token ids in, sampled tokens with exact log-probabilities out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

FinishReason = Literal["stop", "length"]
TopLogprobs = tuple[tuple[int, float], ...]  # (token id, log-probability), likeliest first


@dataclass(frozen=True, slots=True)
class Sampling:
    max_tokens: int = 16
    temperature: float = 1.0  # 0 takes the likeliest token
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    min_tokens: int = 0
    ignore_end: bool = False
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = field(default_factory=frozenset)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    top_logprobs: int = 0  # alternatives to return beside each sampled token

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def reshapes(self) -> bool:
        """Whether tokens come from something else than the whole distribution at the temperature."""
        is_cut = self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0
        return bool(is_cut or self.has_penalties or self.logit_bias)


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one sample, for a client that streams."""

    index: int  # of the sample in its request
    tokens: Sequence[int]
    logprobs: Sequence[float]
    top_logprobs: Sequence[TopLogprobs] = ()


@dataclass(frozen=True, slots=True)
class Request:
    prompt: tuple[int, ...]
    sampling: Sampling
    n: int = 1
    on_delta: Callable[[Delta], None] | None = None  # called on the event loop by engines that can stream


@dataclass(frozen=True, slots=True)
class Completion:
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # under the policy at the request's temperature, before cuts, penalties and biases
    text: str  # without the stop string
    finish_reason: FinishReason
    versions: tuple[tuple[int, int], ...]  # (policy version, how many tokens it wrote), oldest first
    stop_string: str | None = None
    top_logprobs: tuple[TopLogprobs, ...] = ()  # one entry a token, where the request asked for them

    @property
    def version(self) -> int:
        return self.versions[0][0] if self.versions else 0


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of given tokens, each under the policy after those before it; the first has none."""

    logprobs: tuple[float | None, ...]
    top_logprobs: tuple[TopLogprobs | None, ...] = ()


class EngineBusyError(Exception):
    """The engine cannot answer at the moment; a later attempt may succeed."""


class Engine(Protocol):
    name: ClassVar[str]  # as the log and the run's status have it

    async def start(self) -> None: ...

    async def generate(self, request: Request) -> list[Completion]:
        """Raises ValueError for what this engine cannot do."""

    async def score(self, tokens: tuple[int, ...], top: int) -> Scores:
        """Log-probabilities at temperature 1 and the `top` alternatives. Raises ValueError where not supported."""

    async def publish(self) -> None:
        """The weights have changed: the next sample must come from the new ones."""

    def problem(self) -> str | None:
        """Why no sample can be made at the moment, or None."""

    async def stop(self) -> None: ...
