"""The API server as the trainer sees it: register, lease a batch, acknowledge it, report checkpoints."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import aiohttp
import msgspec

from clotho_contract.api_protocol import (
    EVALUATIONS_PATH,
    PROTOCOL_HEADERS,
    ApiStatus,
    AtStep,
    Evaluations,
    LeasedBatch,
    LeaseRequest,
    Register,
    refusal_detail,
    refused_fields,
)
from clotho_contract.config import RunConfig
from clotho_contract.history import Evaluation
from clotho_contract.retry import Backoff, TransientError, reason_of, retry_after, retrying
from clotho_trainer.failures import TrainerError

log = logging.getLogger(__name__)

_LONG_POLL_SECONDS = 20.0
_LIMIT_WHEN_STOPPING = 5.0
Answer = TypeVar("Answer")
_STEPS = frozenset({"step", "starting_step"})  # fields of requests
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})


class LeaseLostError(Exception):
    """The lease has expired on the server, and the batch will be delivered again."""


class UnregisteredError(Exception):
    """The server has no trainer registered: it lost its volume, and with it everything about this run."""


class OutdatedServerError(Exception):
    """The server's steps are not those of this trainer: its volume was restored from an older copy."""


class Lease(LeasedBatch, frozen=True):
    def digest(self) -> bytes:
        """The same for the same batch, whichever lease it comes under."""
        content = hashlib.blake2b()
        for group in self.batch:
            content.update(bytes(group))
        return content.digest()


class ApiServer:
    def __init__(
        self, session: aiohttp.ClientSession, base_url: str, token: str, limit_seconds: float, stop: asyncio.Event
    ) -> None:
        self._session = session
        self._stop = stop
        self._base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}", **PROTOCOL_HEADERS}
        self._limit_seconds = limit_seconds  # seconds without any answer before the trainer fails

    async def wait_until_up(self) -> None:
        await self._request("GET", "/status")

    async def status(self) -> ApiStatus:
        _, body = await self._request("GET", "/status")
        return msgspec.json.decode(body, type=ApiStatus)

    async def evaluations(self) -> tuple[Evaluation, ...]:
        _, body = await self._request("GET", EVALUATIONS_PATH)
        return msgspec.json.decode(body, type=Evaluations).evaluations

    async def register(self, config: RunConfig, checkpoints: str, step: int, *, discards_state: bool = False) -> None:
        wandb = config.wandb
        await self._request(
            "POST",
            "/register",
            Register(
                wandb_group=config.run.id,
                wandb_project=wandb.project if wandb else "",
                batch_size=config.training.batch_size,
                max_token_len=config.training.max_tokens,
                checkpoint_dir=checkpoints,
                save_checkpoint_interval=config.training.checkpoint.every_steps,
                starting_step=step,
                num_steps=config.training.steps,
                discards_state=discards_state,
            ),
        )

    async def lease(self) -> Lease | None:
        """None when no batch was ready within the long poll."""
        status, body = await self._request("POST", "/lease", LeaseRequest(_LONG_POLL_SECONDS))
        if status == 204:
            return None
        try:
            return msgspec.json.decode(body, type=Lease)
        except msgspec.MsgspecError as error:
            raise TrainerError(
                "DependencyUnavailable", f"{self._base_url}/lease answered something else than a lease: {error}"
            ) from error

    async def acknowledge(self, lease_id: str, step: int) -> None:
        await self._request("POST", f"/lease/{lease_id}/ack", AtStep(step))

    async def release(self, lease_id: str) -> None:
        with suppress(LeaseLostError):
            await self._request("POST", f"/lease/{lease_id}/release", {})

    async def checkpointed(self, step: int) -> None:
        await self._request("POST", "/checkpointed", AtStep(step))

    @asynccontextmanager
    async def renewed(self, lease: Lease) -> AsyncIterator[None]:
        """Keep the lease alive for as long as the step takes."""
        renewal = asyncio.create_task(self._renew(lease))
        try:
            yield
        finally:
            renewal.cancel()
            with suppress(asyncio.CancelledError):
                await renewal

    async def _renew(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(lease.expires_in / 3)
            try:
                await self._request("POST", f"/lease/{lease.lease_id}/renew", {})
            except (LeaseLostError, TrainerError) as error:
                log.warning("the lease could not be renewed: %s", error)
                return

    async def _request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Try until the server answers or the limit is reached: it may be restarting."""
        return await retried(lambda: self._once(method, path, body), self._remaining_seconds, f"{self._base_url}{path}")

    def _remaining_seconds(self) -> float:
        """A trainer that is stopping has only its grace period, and the server may be gone for good by then."""
        return _LIMIT_WHEN_STOPPING if self._stop.is_set() else self._limit_seconds

    async def _once(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_LONG_POLL_SECONDS + 60)
        data = None if body is None else msgspec.json.encode(body)
        headers = {**self._headers, "Content-Type": "application/json"}
        url = self._base_url + path
        async with self._session.request(method, url, data=data, headers=headers, timeout=timeout) as response:
            answer = await response.read()
            if response.status < 300:
                return response.status, answer
            detail = refusal_detail(answer)
            if response.status in _BUSY:
                raise TransientError(f"{response.status} {detail}", retry_after=retry_after(response.headers) or None)
            if response.status in (401, 403):
                raise TrainerError("Unauthorized", f"the API server at {self._base_url} refused the token: {detail}")
            if response.status in (404, 409) and path.startswith("/lease/"):
                raise LeaseLostError(detail)
            if response.status == 409 and path == "/lease":
                raise UnregisteredError(detail)
            if response.status == 422 and refused_fields(answer) & _STEPS:
                raise OutdatedServerError(detail)
            raise TrainerError("InvalidConfig", f"the API server refused {path}: {response.status} {detail}")


async def retried(operation: Callable[[], Awaitable[Answer]], limit_seconds: Callable[[], float], what: str) -> Answer:
    """Retry over connection errors and busy answers until the limit, in seconds, is used up."""
    loop = asyncio.get_running_loop()
    began, is_logged = loop.time(), False

    def give_up_or_log(error: Exception, pause: float) -> None:
        nonlocal is_logged
        waited, reason = loop.time() - began, reason_of(error)
        if waited + pause > limit_seconds():
            raise TrainerError("DependencyUnavailable", f"no answer from {what} for {waited:.0f} s: {reason}")
        if not is_logged:
            log.warning("waiting for %s: %s", what, reason)
            is_logged = True

    return await retrying(
        operation,
        on=(TransientError, aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError),
        backoff=Backoff(first=0.2, cap=10.0),
        before_wait=give_up_or_log,
    )
