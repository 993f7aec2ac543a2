"""The policy port of rank 0: inference replicas wait here for the next version of the trained parameters, and report
their load.

A version is copied once, when the first replica asks for it, and sent to all of them from where it was copied to.
Besides the newest there is at most one older copy, for as long as it is being sent; the memory of a copy that is no
longer needed is reused for the next.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import xxhash
from aiohttp import web

from clotho_contract import untrusted
from clotho_contract.access import is_accepted, presented_token
from clotho_contract.names import POLICY_VERSION_HEADER
from clotho_contract.policy_updates import (
    AFTER,
    ATTEMPT,
    ATTEMPT_HEADER,
    DIGEST_HEADER,
    HOLD_SECONDS,
    LOAD_PATH,
    POLICY_PATH,
    REPLICA,
    Load,
)
from clotho_trainer.training.backend import Backend

if TYPE_CHECKING:
    from clotho_trainer.model.memory_file import MemoryFile

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CHUNK = 2**22
_LONGEST_INDEX = 6  # digits of a replica's
_COPIES = 2
_SENDING_SECONDS = 900.0  # a replica that takes longer starts again with a newer version


@dataclass(eq=False)
class _Copy:
    version: int
    file: "MemoryFile"
    digest: str
    readers: int = 0


class PolicyServer:
    """Listens from the start; answers 503 until there is a backend."""

    def __init__(self, token: str, count_replica: Callable[[str, Load], None] = lambda _name, _load: None) -> None:
        self._token = token
        self._count_replica = count_replica
        self._hold_seconds = HOLD_SECONDS
        self._attempt = secrets.token_hex(8)
        self._backend: Backend | None = None
        self._copies: list[_Copy] = []  # the newest is the last
        self._copying: asyncio.Task[_Copy] | None = None  # for all who wait for it
        self._changed = asyncio.Event()  # a new one after each change

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get(POLICY_PATH, self._policy)
        app.router.add_post(LOAD_PATH, self._load)
        return app

    def publish(self, backend: Backend) -> None:
        """Once the model is loaded, and after each step."""
        self._backend = backend
        self._announce()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_accepted(presented_token(request.headers.get("Authorization")), (self._token,)):
            return web.json_response({"detail": "the token of the inference replicas is missing or wrong"}, status=401)
        return await handler(request)

    async def _load(self, request: web.Request) -> web.Response:
        name = request.query.get(REPLICA, "")
        try:
            load = untrusted.decode(await request.read(), Load)
        except msgspec.MsgspecError as error:
            return web.json_response({"detail": str(error)}, status=400)
        if not name.isdecimal() or len(name) > _LONGEST_INDEX:
            return web.json_response({"detail": f"{REPLICA} is not the index of a replica"}, status=400)
        self._count_replica(name, load)
        return web.Response(status=204)

    async def _policy(self, request: web.Request) -> web.StreamResponse:
        backend = self._backend
        if backend is None:
            detail = {"detail": "the trainer is still loading"}
            return web.json_response(detail, status=503, headers={"Retry-After": "1"})
        held = (request.query.get(ATTEMPT, ""), request.query.get(AFTER, ""))
        try:
            async with asyncio.timeout(self._hold_seconds):
                await self._until(lambda: (self._attempt, str(backend.version)) != held)
                newest = await self._newest(backend)
        except TimeoutError:  # nothing new, or a step that must end before it can be copied
            return web.Response(status=204, headers=self._headers(backend.version))
        with self._reading(newest) as copy:
            return await self._send(request, copy)

    async def _newest(self, backend: Backend) -> _Copy:
        """The copy goes on for others when this caller leaves."""
        while True:
            if self._copying is None or self._copying.done():
                self._copying = asyncio.create_task(self._copy_newest(backend))
            copy = await asyncio.shield(self._copying)
            if copy in self._copies:  # or else a newer one has its memory already
                return copy

    async def _copy_newest(self, backend: Backend) -> _Copy:
        if not self._copies or self._copies[-1].version != backend.version:
            await self._until(lambda: len(self._being_sent) < _COPIES)
            spare = next((copy.file for copy in self._copies if not copy.readers), None)
            self._copies = self._being_sent  # the others make room first
            self._copies.append(await asyncio.to_thread(_copy, backend, spare))
        return self._copies[-1]

    @contextmanager
    def _reading(self, copy: _Copy) -> Iterator[_Copy]:
        copy.readers += 1
        try:
            yield copy
        finally:
            copy.readers -= 1
            self._announce()

    @property
    def _being_sent(self) -> list[_Copy]:
        return [copy for copy in self._copies if copy.readers]

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    async def _send(self, request: web.Request, copy: _Copy) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._headers(copy.version) | {DIGEST_HEADER: copy.digest})
        response.content_type = "application/octet-stream"
        response.content_length = copy.file.size
        try:
            async with asyncio.timeout(_SENDING_SECONDS):
                await response.prepare(request)
                if request.transport is not None:
                    request.transport.set_write_buffer_limits(0)  # what is drained refers to the file no longer
                for start in range(0, copy.file.size, _CHUNK):
                    await response.write(copy.file.view[start : start + _CHUNK])
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    def _headers(self, version: int) -> dict[str, str]:
        return {ATTEMPT_HEADER: self._attempt, POLICY_VERSION_HEADER: str(version)}


def _copy(backend: Backend, spare: "MemoryFile | None") -> _Copy:
    began = time.monotonic()
    version, file = backend.write_trained(spare)
    copied = time.monotonic()
    digest = xxhash.xxh3_128(file.view).hexdigest()
    seconds = {"seconds_copying": copied - began, "seconds_checksum": time.monotonic() - copied}
    log.info("copied the policy of step %d for inference replicas", version, extra={"bytes": file.size, **seconds})
    return _Copy(version, file, digest)
