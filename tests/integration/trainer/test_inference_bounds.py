"""What the requests of one environment may cost the trainer: memory and time. The engine is not part of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from clotho_contract import request_body
from clotho_trainer.inference import server as module
from clotho_trainer.inference import service as service_module
from clotho_trainer.inference.core.engine import Completion, EngineBusyError, Request, Sampling
from clotho_trainer.inference.elsewhere import ElsewhereEngine
from clotho_trainer.inference.server import InferenceServer
from clotho_trainer.inference.service import Service
from integration.trainer.served import TOKEN

BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Route:
    """Answers when `may_end` is set, and counts the requests under way."""

    def __init__(self) -> None:
        self.under_way = 0
        self.are_five, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: web.Request, service: Any, body: Any) -> web.Response:
        self.under_way += 1
        if self.under_way == 5:
            self.are_five.set()
        await self.may_end.wait()
        return web.json_response({})


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[TestClient[Any, Any], Route]]:
    route, server = Route(), InferenceServer(TOKEN)
    monkeypatch.setattr(module.sglang_routes, "generate", route)
    server.service = object()  # type: ignore[assignment]
    async with TestClient(TestServer(server.application())) as client:
        yield client, route


def of_size(size: int) -> bytes:
    return b'{"input_ids": [1]' + b" " * (size - 18) + b"}"


async def status_of(client: TestClient[Any, Any], body: Any) -> int:
    async with client.post("/generate", data=body, headers=BEARER) as response:
        return response.status


async def test_requests_beyond_the_memory_for_bodies_wait_and_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BODIES_IN_MEMORY", 10_000)
    async with serving(monkeypatch) as (client, route):
        asked = [asyncio.create_task(status_of(client, of_size(2_000))) for _ in range(20)]
        await asyncio.wait_for(route.are_five.wait(), 30)
        await asyncio.sleep(0.2)
        assert route.under_way == 5, "what more there is waits"
        route.may_end.set()
        assert await asyncio.gather(*asked) == [200] * 20


async def test_a_body_beyond_the_limit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST_BODY", 1_000)
    async with serving(monkeypatch) as (client, _):
        async with client.post("/generate", data=of_size(1_001), headers=BEARER) as response:
            assert response.status == 413
            assert "the limit is 1000" in await response.text()

        async def without_length() -> AsyncIterator[bytes]:
            yield of_size(1_001)

        assert await status_of(client, without_length()) == 413


async def test_a_body_that_comes_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "LIMIT_SECONDS", 0.2)

    async def trickle() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    async with serving(monkeypatch) as (client, _):
        assert await status_of(client, trickle()) == 408


class Endless(ElsewhereEngine):
    """Never has an answer."""

    async def generate(self, request: Request) -> list[Completion]:
        return await asyncio.Future[list[Completion]]()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_small_request_cannot_ask_for_millions_of_completions(stream: bool) -> None:
    server = InferenceServer(TOKEN)
    server.service = Service(Endless(), None, "m", context=96, vocabulary=64, temperature=1.0)
    async with TestClient(TestServer(server.application())) as client:
        body = {"input_ids": [[1], [2]], "sampling_params": {"n": 4096}, "stream": stream}
        async with client.post("/generate", json=body, headers=BEARER) as response:
            assert response.status == 400
            assert "2 prompts with n 4096 are more than 4096 completions" in await response.text()


async def test_completions_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_MOST_IN_FLIGHT", 10)
    service = Service(Endless(), None, "m", context=96, vocabulary=64, temperature=1.0)
    held = asyncio.create_task(service.sample([[1]], Sampling(), 8))
    await asyncio.sleep(0)
    with pytest.raises(EngineBusyError, match="8 completions are in flight; the limit is 10"):
        await service.sample([[1]], Sampling(), 3)
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    again = asyncio.create_task(service.sample([[1]], Sampling(), 10))
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()
