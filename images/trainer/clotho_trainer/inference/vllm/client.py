"""Requests to vLLM's server."""

from typing import Any

import aiohttp

from clotho_contract.retry import reason_of
from clotho_trainer.inference.core.engine import EngineBusyError


class VllmClient:
    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    @property
    def is_open(self) -> bool:
        return self._session is not None

    async def open(self) -> None:
        """In the running loop, which a session needs."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> bytes:
        return await self._ask("GET", path)

    async def post(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        if self._session is None:
            raise EngineBusyError("vLLM has not been started")
        try:
            async with self._session.request(method, self._url + path, json=body) as response:
                answer = await response.read()
        except aiohttp.ClientError as error:
            raise EngineBusyError(f"vLLM does not answer: {reason_of(error)}") from error
        if response.status >= 400:
            raise EngineBusyError(f"vLLM refused {path}: {response.status} {answer[:300].decode(errors='replace')}")
        return answer
