"""`wait`: the init container. Returns when API server, trainer and inference are ready, and fetches the tokenizer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from clotho_contract.api_protocol import Info
from clotho_contract.config import RunConfig
from clotho_contract.retry import Backoff, TransientError, reason_of, retrying
from clotho_contract.termination import Reason, Termination
from clotho_contract.untrusted import decode
from clotho_environment.clients.connections import open_session
from clotho_environment.pod.tokenizer import TokenizerError, unpack_tokenizer
from clotho_environment.sdk.bodies import read_answer

log = logging.getLogger(__name__)

REMIND_SECONDS: Final = 30.0

Check = Callable[[], Awaitable[None]]
"""Raises TransientError with one sentence while something is missing."""


async def wait(run: RunConfig, token: str, tokenizer: Path, timeout_seconds: float | None) -> Termination:
    try:
        async with asyncio.timeout(timeout_seconds), open_session(token, total_seconds=60) as session:
            waiter = Waiter(session, api_server=run.endpoints.api_server, inference=run.endpoints.inference)
            await waiter.wait(tokenizer)
    except RefusedError as error:
        return Termination(reason=error.reason, message=str(error))
    except TimeoutError:
        return Termination(reason="DependencyUnavailable", message=f"the run was not ready after {timeout_seconds:g} s")
    return Termination(reason="Finished", message=f"the run is ready; its tokenizer is in {tokenizer}")


class RefusedError(Exception):
    """Waiting longer cannot help."""

    def __init__(self, message: str, reason: Reason = "DependencyUnavailable") -> None:
        super().__init__(message)
        self.reason: Reason = reason


class Waiter:
    """Each thing is the precondition of the next, so they are waited for in order."""

    def __init__(
        self, session: aiohttp.ClientSession, *, api_server: str, inference: str, poll_seconds: float = 0.5
    ) -> None:
        self._session = session
        self._api_server = api_server
        self._inference = inference
        self._poll_seconds = poll_seconds

    async def wait(self, tokenizer_path: Path) -> None:
        await self._until(self._check_trainer, "the trainer to register")
        await self._until(self._check_inference, "inference")
        await self._until(lambda: self._check_tokenizer(tokenizer_path), "the tokenizer")

    async def _until(self, check: Check, what: str) -> None:
        loop = asyncio.get_running_loop()
        remind_at = loop.time()

        def remind(error: Exception, _: float) -> None:
            nonlocal remind_at
            if loop.time() >= remind_at:
                log.info("waiting for %s: %s", what, reason_of(error))
                remind_at = loop.time() + REMIND_SECONDS

        await retrying(
            check,
            on=(TransientError, aiohttp.ClientError, TimeoutError),
            backoff=Backoff(self._poll_seconds, self._poll_seconds),
            before_wait=remind,
        )

    async def _check_trainer(self) -> None:
        if _batch_size(await self._get(self._api_server + "/info")) <= 0:
            raise TransientError("the API server is up, the trainer has not registered")

    async def _check_inference(self) -> None:
        await self._get(self._inference + "/health")

    async def _check_tokenizer(self, path: Path) -> None:
        body = await self._get(self._inference + "/tokenizer.tar")
        try:
            await asyncio.to_thread(unpack_tokenizer, body, path)
        except TokenizerError as error:
            raise RefusedError(str(error)) from error

    async def _get(self, url: str) -> bytes:
        async with self._session.get(url) as response:
            if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise RefusedError(f"{url} refuses our token ({response.status})", "Unauthorized")
            if response.status != HTTPStatus.OK:
                raise TransientError(f"{url} answers {response.status}")
            return await read_answer(response)


def _batch_size(body: bytes) -> int:
    try:
        info: Info = decode(body, Info)
        return info.batch_size
    except msgspec.MsgspecError as error:
        raise RefusedError(f"not an API server: its answer to /info cannot be read ({error})") from error
