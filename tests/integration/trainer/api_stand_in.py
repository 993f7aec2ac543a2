"""The part of the API server's protocol that a trainer uses, over batches made beforehand."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from clotho_contract.trajectory import ScoredGroup

TOKEN = "the-run's-token"


@dataclass
class ApiStandIn:
    batches: list[list[Any]]
    registrations: list[dict[str, Any]] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    checkpointed: list[int] = field(default_factory=list)
    losing: int = 0  # so many acknowledgements find their lease expired
    is_gone: bool = False  # answers 503 to everything
    url: str = ""
    on_acknowledge: Any = lambda step: None
    _step: int = 0
    _leased: dict[str, list[Any]] = field(default_factory=dict)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/status", self._status)
        app.router.add_post("/register", self._register)
        app.router.add_post("/checkpointed", self._checkpointed)
        app.router.add_post("/lease", self._lease)
        app.router.add_post("/lease/{id}/ack", self._ack)
        app.router.add_post("/lease/{id}/{action}", self._ok)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.is_gone:
            return web.json_response({"detail": "gone"}, status=503)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"detail": "wrong token"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"current_step": 0, "queue_size": len(self.batches)})

    async def _register(self, request: web.Request) -> web.Response:
        self.registrations.append(await request.json())
        self._step = self.registrations[-1]["starting_step"]
        return web.json_response({"uuid": 1})

    async def _checkpointed(self, request: web.Request) -> web.Response:
        self.checkpointed.append((await request.json())["step"])
        return web.json_response({})

    async def _lease(self, _: web.Request) -> web.Response:
        if not self.batches:
            await asyncio.sleep(0.05)
            return web.Response(status=204)
        lease = f"lease-{len(self._leased)}"
        self._leased[lease] = self.batches.pop(0)
        body = {"lease_id": lease, "expires_in": 600.0, "step": self._step, "batch": self._leased[lease]}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _ack(self, request: web.Request) -> web.Response:
        if self.losing:
            self.losing -= 1
            self.batches.insert(0, self._leased[request.match_info["id"]])
            return web.json_response({"detail": "no such lease"}, status=409)
        step = (await request.json())["step"]
        self.acknowledged.append(step)
        self._step = step
        if inspect.isawaitable(looking := self.on_acknowledge(step)):
            await looking  # the trainer waits for its answer meanwhile, so what is seen stands still
        return web.json_response({"current_step": step})

    async def _ok(self, _: web.Request) -> web.Response:
        return web.json_response({"expires_in": 600.0})


@asynccontextmanager
async def api_server(batches: list[list[ScoredGroup | dict[str, Any]]]) -> AsyncIterator[ApiStandIn]:
    stand_in = ApiStandIn(list(batches))
    async with TestServer(stand_in.application()) as server:
        stand_in.url = str(server.make_url("")).rstrip("/")
        yield stand_in
