"""Between the operator and the API server: records every write, and does to requests and watches what a fault asks."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from clotho.cluster.kubeconfig import from_kubeconfig
from faults.calls import Body, Call, Numbering, Write, parse
from rig.meddling_proxy import serve_proxy

PASSED = ("Content-Type", "Retry-After", "Content-Encoding")
GONE = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "old"}


class Moment(StrEnum):
    BEFORE = "before"  # the server has not seen the write
    COMMITTED = "committed"  # it has, and the answer is still here
    ANSWERED = "answered"  # the operator has the answer


class ConnectionLost(Exception):  # noqa: N818 - an answer like the others
    """The operator's connection is reset."""


@dataclass(frozen=True)
class Recorded:
    """A write that reached the proxy, its body, and the server's answer (0: it was never forwarded)."""

    write: Write
    body: Body
    code: int = 0


@dataclass(eq=False)
class OpenWatch:
    plural: str
    response: web.StreamResponse
    upstream: aiohttp.ClientResponse
    flows: asyncio.Event = field(default_factory=asyncio.Event)

    async def expire(self) -> None:
        """The server no longer has the events since the watch's version: 410, the client lists again."""
        await self.response.write(msgspec.json.encode({"type": "ERROR", "object": GONE}) + b"\n")
        self.upstream.close()


OnWrite = Callable[[Write, Moment], Awaitable[web.StreamResponse | None]]
OnCall = Callable[[Call], Awaitable[web.StreamResponse | None]]


async def _no_fault(*_: object) -> None:
    return None


class FaultProxy:
    """`on_write` is called at each moment of each write, `on_call` before everything; both may answer instead."""

    def __init__(self, kubeconfig: Path, folder: Path, upstream: aiohttp.ClientSession) -> None:
        self._session = upstream
        self._credentials = from_kubeconfig(kubeconfig)
        self.kubeconfig = folder / "proxied.kubeconfig"
        self.recorded: list[Recorded] = []
        self.on_write: OnWrite = _no_fault
        self.on_call: OnCall = _no_fault
        self.watches: set[OpenWatch] = set()
        self.held: set[str] = set()  # plurals whose watches deliver nothing
        self.replayed: set[str] = set()  # plurals whose next list is the oldest one
        self._lists: dict[tuple[str, str], bytes] = {}
        self._flow: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._numbering = Numbering()

    async def __aenter__(self) -> FaultProxy:
        self._server = await serve_proxy(self._handle, self.kubeconfig)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        for watch in tuple(self.watches):
            watch.flows.set()
            watch.upstream.close()
        await self._server.cleanup()

    def hold(self, plural: str) -> None:
        self.held.add(plural)
        self._flow[plural].clear()

    def release(self) -> None:
        """What was held arrives now."""
        for plural in tuple(self.held):
            self.held.discard(plural)
            self._flow[plural].set()

    def open_watches(self, plural: str) -> list[OpenWatch]:
        return [watch for watch in self.watches if watch.plural == plural]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        call = parse(request, raw)
        write = self._numbering.number(call.write) if call.write is not None else None
        try:
            if (answer := await self.on_call(call)) is not None:
                return answer
            if write is None:
                return await self._forward(request, raw, call)
            if (answer := await self.on_write(write, Moment.BEFORE)) is not None:
                self.recorded.append(Recorded(write, call.body))
                return answer
            return await self._forward_write(request, raw, call, write)
        except ConnectionLost:
            return _reset(request)

    async def _forward_write(self, request: web.Request, raw: bytes, call: Call, write: Write) -> web.StreamResponse:
        async with self._upstream(request, raw) as upstream:
            body = await upstream.read()
            self.recorded.append(Recorded(write, call.body, upstream.status))
            if (answer := await self.on_write(write, Moment.COMMITTED)) is not None:
                return answer
            response = await _answer(request, upstream, body)
        await self.on_write(write, Moment.ANSWERED)
        return response

    async def _forward(self, request: web.Request, raw: bytes, call: Call) -> web.StreamResponse:
        which = (request.raw_path, request.headers.get("Accept", ""))
        if call.is_list and call.plural in self.replayed and which in self._lists:
            self.replayed.discard(call.plural)
            return web.Response(body=self._lists[which], content_type="application/json")
        async with self._upstream(request, raw) as upstream:
            if call.is_watch and upstream.status == 200:
                return await self._relay(request, upstream, call.plural)
            body = await upstream.read()
            if call.is_list and upstream.status == 200 and "Content-Encoding" not in upstream.headers:
                self._lists.setdefault(which, body)
            return await _answer(request, upstream, body)

    async def _relay(self, request: web.Request, upstream: aiohttp.ClientResponse, plural: str) -> web.StreamResponse:
        watch = OpenWatch(plural, await _prepared(request, upstream), upstream)
        watch.flows.set()
        self.watches.add(watch)
        try:
            async for events in _whole_lines(upstream):
                await watch.flows.wait()
                if plural in self.held:
                    await self._flow[plural].wait()
                await watch.response.write(events)
            await watch.response.write_eof()
        except (aiohttp.ClientConnectionError, ConnectionResetError):
            pass  # the fault, or the operator, ended it
        finally:
            self.watches.discard(watch)
        return watch.response

    def _upstream(self, request: web.Request, raw: bytes) -> aiohttp.client._RequestContextManager:
        headers = {k: v for k, v in request.headers.items() if k.lower() in ("accept", "content-type")}
        return self._session.request(
            request.method,
            self._credentials.server + request.raw_path,
            data=raw or None,
            headers=headers | self._credentials.headers(),
            timeout=aiohttp.ClientTimeout(total=None),
        )


async def _whole_lines(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """So that what a fault writes into the watch stands between two events."""
    rest = b""
    async for chunk in upstream.content.iter_any():
        lines, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            yield lines + newline


async def _prepared(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {name: upstream.headers[name] for name in PASSED if name in upstream.headers}
    response = web.StreamResponse(status=upstream.status, headers=headers)
    try:
        await response.prepare(request)
    except ConnectionError as error:  # the operator was killed meanwhile
        raise ConnectionLost from error
    return response


async def _answer(request: web.Request, upstream: aiohttp.ClientResponse, body: bytes) -> web.StreamResponse:
    response = await _prepared(request, upstream)
    try:
        await response.write(body)
        await response.write_eof()
    except ConnectionError as error:  # the operator was killed meanwhile
        raise ConnectionLost from error
    return response


def _reset(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def refusal(code: int, reason: str, retry_after: int = 0) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": "injected fault"}
    return web.json_response(body, status=code, headers={"Retry-After": str(retry_after)} if retry_after else {})
