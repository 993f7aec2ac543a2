"""An inference replica follows the policy of its trainer: it polls, verifies and swaps, and is ready while current."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

import aiohttp

from clotho_contract.names import POLICY_VERSION_HEADER
from clotho_contract.policy_updates import AFTER, ATTEMPT, ATTEMPT_HEADER, DIGEST_HEADER, HOLD_SECONDS, POLICY_PATH
from clotho_contract.retry import Backoff, TransientError, reason_of, retry_after, retrying
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import Engine
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.model.trained import TrainedParameters, decode, replace_trained

log = logging.getLogger(__name__)

SILENCE_SECONDS = 60.0  # after which the age of the policy counts as unknown
_POLL = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=HOLD_SECONDS + 25)


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


@dataclass(frozen=True)
class _Update:
    attempt: str
    trained: TrainedParameters


class PolicyFollower:
    """`names`: the parameters that are trained."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        trainer: str,
        live: LiveWeights,
        names: frozenset[str],
        *,
        max_staleness: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._url = trainer.rstrip("/") + POLICY_PATH
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
            update = await retrying(
                self._poll,
                on=(TransientError, aiohttp.ClientError, TimeoutError),
                backoff=Backoff(0.2, 5.0),
                before_wait=lambda error, _: self._note(error),
            )
            if update is not None:
                await asyncio.to_thread(self._swap, update)
                await engine.publish()
                version = update.trained.version
                self.position = replace(self.position, version=version)
                log.info("serving the policy of step %d", version)

    def _swap(self, update: _Update) -> None:
        is_other_attempt = update.attempt != self._attempt
        try:
            replace_trained(self._live, self._names, update.trained, self._live.lineage + is_other_attempt)
        except ValueError as error:
            raise TrainerError("InternalError", str(error)) from error
        self._attempt = update.attempt

    def _note(self, error: Exception) -> None:
        problem = reason_of(error)
        if problem != self.position.problem:
            log.warning("the trainer does not send its policy: %s", problem)
        self.position = replace(self.position, problem=problem)

    async def _poll(self) -> _Update | None:
        version = self.position.version
        held = {AFTER: "" if version is None else str(version), ATTEMPT: self._attempt}
        async with self._session.get(self._url, params=held, timeout=_POLL) as response:
            if response.status not in (200, 204):
                excerpt = (await response.content.read(300)).decode(errors="replace")
                raise TransientError(f"{response.status} {excerpt}", retry_after=retry_after(response.headers))
            newest = self._heard(response.headers)
            if response.status == 204:
                return None
            return await self._read(response, newest)

    def _heard(self, headers: Mapping[str, str]) -> int:
        text = headers.get(POLICY_VERSION_HEADER, "")
        if not text.isdecimal():
            raise TransientError(f"the trainer's answer has no {POLICY_VERSION_HEADER}")
        self.position = replace(self.position, newest=int(text), heard_at=self._clock(), problem="")
        return int(text)

    async def _read(self, response: aiohttp.ClientResponse, version: int) -> _Update:
        body, digest = bytearray(), hashlib.sha256()
        async for chunk in response.content.iter_chunked(2**20):
            body += chunk
            digest.update(chunk)
            self.position = replace(self.position, heard_at=self._clock())
        expected = response.headers.get(DIGEST_HEADER, "")
        if digest.hexdigest() != expected:
            raise TransientError("the trainer's answer was damaged on its way: its digest differs")
        try:
            tensors = await asyncio.to_thread(decode, bytes(body))
        except ValueError as error:
            raise TransientError(str(error)) from error
        attempt = response.headers.get(ATTEMPT_HEADER, "")
        return _Update(attempt, TrainedParameters(version, tensors))
