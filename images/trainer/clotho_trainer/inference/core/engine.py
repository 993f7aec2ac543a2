"""The seam behind which engines are exchanged: token ids in, sampled tokens with exact log-probabilities out."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    max_tokens: int = 16
    temperature: float = 1.0  # 0 takes the likeliest token
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_tokens: int = 0
    ignore_end: bool = False
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Request:
    prompt: tuple[int, ...]
    sampling: Sampling
    n: int = 1


@dataclass(frozen=True, slots=True)
class Completion:
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # under the policy at the request's temperature, before top_p and top_k cut anything
    text: str  # without the stop string
    finish_reason: FinishReason
    versions: tuple[tuple[int, int], ...]  # (policy version, how many tokens it wrote), oldest first
    stop_string: str | None = None

    @property
    def version(self) -> int:
        return self.versions[0][0] if self.versions else 0


class EngineBusyError(Exception):
    """The engine cannot answer just now; asking again later helps."""


class Engine(Protocol):
    async def start(self) -> None: ...

    async def generate(self, request: Request) -> list[Completion]: ...

    async def publish(self) -> None:
        """New weights are there: the next sample must come from them."""

    def problem(self) -> str | None:
        """Why no sample can be made at the moment, or None."""

    async def stop(self) -> None: ...
