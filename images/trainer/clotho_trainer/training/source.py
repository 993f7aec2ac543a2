"""The seam behind which scored groups are found: the API server, or the trainer's own sampling from a dataset."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from clotho_contract.config import RunConfig
from clotho_contract.history import Evaluation
from clotho_contract.progress import State
from clotho_contract.trajectory import ScoredGroup
from clotho_trainer.training.backend import Backend


@dataclass(frozen=True)
class Reading:
    groups: Sequence[ScoredGroup]
    rejected: Sequence[str] = ()  # why, for each group that cannot be trained on


class Delivery(Protocol):
    """The groups of one optimiser step."""

    def read(self, vocabulary: int) -> Reading:
        """Blocks for as long as decoding takes."""

    def held(self) -> AbstractAsyncContextManager[None]:
        """The groups stay reserved for this trainer meanwhile."""

    def figures(self, found: Mapping[str, float]) -> Mapping[str, float]:
        """The source's own figures about them; `found` are those of the training step."""

    @property
    def ends_epoch(self) -> bool:
        """Whether a pass over the dataset ends with these groups."""

    async def trained(self, step: int, figures: Mapping[str, float]) -> None:
        """The policy has learned from them, and has this many steps now."""


class Source(Protocol):
    """First `prepare`, while the model loads; then `open`, with the model; then `take`, again and again."""

    @property
    def opening(self) -> str:
        """What is waited for in `open`."""

    async def prepare(self) -> None: ...

    async def open(self, backend: Backend, state: dict[str, Any]) -> None:
        """`state` is what the source left in the checkpoint that the backend goes on from; empty for a new run."""

    @property
    def activity(self) -> State:
        """What the trainer does while it takes."""

    @property
    def last_step(self) -> int | None:
        """Where the data ends; None when it does not."""

    async def take(self, stop: asyncio.Event, step: int) -> Delivery | None:
        """None when there is nothing yet, or the stop came first."""

    async def environment_names(self, ids: Collection[int]) -> Mapping[int, str]:
        """Of the environments that groups came from; those that are not known are missing."""

    async def evaluations(self) -> Sequence[Evaluation]:
        """What the environments have reported so far: the newest, oldest first."""

    async def checkpointed(self, step: int) -> None: ...

    async def reconfigured(self, config: RunConfig, step: int) -> None: ...

    def state(self) -> dict[str, Any]:
        """Kept in each checkpoint, and given back to a source that goes on from it."""
