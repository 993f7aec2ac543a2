"""An inference replica follows the policy of its trainer: it polls, verifies and swaps, and is ready while current."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import NoReturn

from clotho_contract.retry import Backoff, TransientError, reason_of, retrying
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import Engine
from clotho_trainer.inference.policy_download import PolicyPort, Received
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.model.trained import TrainedParameters, replace_trained

log = logging.getLogger(__name__)

SILENCE_SECONDS = 60.0  # after which the age of the policy counts as unknown


@dataclass(frozen=True)
class Position:
    """Where a replica is, and what it has last heard of the trainer."""

    version: int | None = None  # None before the first policy
    newest: int = 0
    heard_at: float = 0.0
    problem: str = ""  # of the last poll


def unready_reason(position: Position, max_staleness: int, now: float) -> str | None:
    """None while it may serve. A `max_staleness` of 0 takes samples of any age."""
    detail = f" ({position.problem})" if position.problem else ""
    if position.version is None:
        return f"waiting for the policy from the trainer{detail}"
    silence = now - position.heard_at
    if silence > SILENCE_SECONDS:
        return f"the trainer has not answered for {silence:.0f} s{detail}: the age of the policy is unknown"
    behind = position.newest - position.version
    if 0 < max_staleness < behind:
        return f"the policy is {behind} steps old; training.maxStaleness is {max_staleness}"
    return None


class PolicyFollower:
    """`names`: the parameters that are trained."""

    def __init__(
        self,
        trainer: str,
        token: str,
        live: LiveWeights,
        names: frozenset[str],
        *,
        max_staleness: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._port = PolicyPort(trainer, token, self._heard)
        self._live = live
        self._names = names
        self._max_staleness = max_staleness
        self._clock = clock
        self._attempt = ""
        self.position = Position()

    def unready(self) -> str | None:
        return unready_reason(self.position, self._max_staleness, self._clock())

    async def follow(self, engine: Engine) -> NoReturn:
        """Waits out a trainer that does not answer; ends only with what a restart may mend."""
        while True:
            received = await retrying(
                lambda: self._port.poll(self.position.version, self._attempt),
                on=(TransientError, OSError, HTTPException),
                backoff=Backoff(0.2, 5.0),
                before_wait=lambda error, _: self._note(error),
            )
            if received is not None:
                await self._take(received, engine)

    async def _take(self, received: Received, engine: Engine) -> None:
        """Into the engine, before the next version comes to the same place."""
        began = time.monotonic()
        await asyncio.to_thread(self._swap, received.attempt, received.trained)
        swapped = time.monotonic()
        await engine.publish()
        version = received.trained.version
        self.position = replace(self.position, version=version)
        seconds = {
            "seconds_receiving": received.seconds,
            "seconds_swapping": swapped - began,
            "seconds_publishing": time.monotonic() - swapped,
        }
        log.info("serving the policy of step %d", version, extra=seconds)

    def _swap(self, attempt: str, trained: TrainedParameters) -> None:
        is_other_attempt = attempt != self._attempt
        try:
            replace_trained(self._live, self._names, trained, self._live.lineage + is_other_attempt)
        except ValueError as error:
            raise TrainerError("InternalError", str(error)) from error
        self._attempt = attempt

    def _note(self, error: Exception) -> None:
        problem = reason_of(error)
        if problem != self.position.problem:
            log.warning("the trainer does not send its policy: %s", problem)
        self.position = replace(self.position, problem=problem)

    def _heard(self, newest: int) -> None:
        self.position = replace(self.position, newest=newest, heard_at=self._clock(), problem="")
