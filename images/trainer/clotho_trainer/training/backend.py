"""What the training loop needs of whatever does the optimising: this pod's GPU, or a remote service."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from clotho_trainer.inference.core.engine import Engine
from clotho_trainer.training.batch import Batch, Rules

if TYPE_CHECKING:
    from clotho_trainer.model.memory_file import MemoryFile


class Backend(Protocol):
    """Its methods block; the loop calls them in a thread of their own, one at a time."""

    @property
    def version(self) -> int:
        """How many optimiser steps the weights contain."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def context(self) -> int:
        """The longest sequence, prompt included."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def rules(self) -> Rules: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def compiles(self) -> bool:
        """Whether the next step compiles the layers first."""

    def rehearse(self) -> None:
        """Compile what steps need, while the policy is sampled for the first of them."""

    def step_expected(self) -> AbstractContextManager[None]:
        """The policy is not sampled meanwhile."""

    def step(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        """One optimiser step; the figures it yields."""

    def gather(self) -> None:
        """Before `save`: what it needs of other ranks, which may end while a file is written."""

    def save(self, folder: Path) -> None: ...

    def restore(self, folder: Path, step: int) -> None: ...

    def write_trained(self, spare: "MemoryFile | None") -> "tuple[int, MemoryFile]":
        """The version and a copy of the policy as it is now, for inference replicas, in `spare` if that has its size.
        May be called from any thread."""

    def decode(self, tokens: list[int]) -> str: ...
