"""In place of an engine, on a rank that has a part of the model only: the policy is served elsewhere."""

from typing import ClassVar

from clotho_trainer.inference.core.engine import Completion, EngineBusyError, Request, Scores

_WHERE = "this rank has a part of the model only: inference.replicas or a vLLM server serve the policy"


class ElsewhereEngine:
    name: ClassVar = "replicas"

    async def start(self) -> None: ...

    async def generate(self, request: Request) -> list[Completion]:
        raise EngineBusyError(_WHERE)

    async def score(self, tokens: tuple[int, ...], top: int) -> Scores:
        raise EngineBusyError(_WHERE)

    async def publish(self) -> None: ...

    def problem(self) -> str | None:
        return None

    async def stop(self) -> None: ...
