"""What one client may cost the others: memory, time and depth."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from clotho_api_server import command
from clotho_api_server.http import intake
from clotho_api_server.http.access import ALLOWED
from clotho_contract import request_body
from rig.trajectory_servers import start_ours

GROUP = {"tokens": [[1]] * 2, "masks": [[1]] * 2, "scores": [1.0, 0.0]}


async def open_slow_request(port: int, declared: int) -> asyncio.StreamWriter:
    """Declares a large body and sends a little of it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /scored_data HTTP/1.1\r\nHost: x\r\nContent-Length: {declared}\r\n\r\n"
    writer.write(head.encode() + b'{"tokens": [[')
    await writer.drain()
    return writer


async def test_slow_clients_with_large_declared_bodies_do_not_hold_up_others(servers) -> None:
    async with servers.serving() as api:
        port = int(api.url.rpartition(":")[2])
        slow = [await open_slow_request(port, 400 * 1024**2) for _ in range(8)]
        try:
            for _ in range(3):
                assert await asyncio.wait_for(api.post("/scored_data", GROUP), 30) == {"status": "received"}
        finally:
            for writer in slow:
                writer.close()


async def test_a_client_must_keep_up_a_minimum_rate(api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk comes in time, but the whole would take hours."""
    monkeypatch.setattr(request_body, "LIMIT_SECONDS", 0.2)

    async def trickle() -> Any:
        while True:
            yield b" " * 100
            await asyncio.sleep(0.02)

    async with api.session.post(api.url + "/scored_data", data=trickle()) as response:
        assert response.status == 408
        assert "too slowly" in (await response.json())["detail"]


@pytest.mark.parametrize("sent", [b"", b"POST /scored_data HTTP/1.1\r\nHost: x\r\nContent-Le"])
async def test_a_connection_without_a_whole_request_is_closed(
    servers, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(command, "KEEP_ALIVE_SECONDS", 0.2)
    async with servers.serving() as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


@contextmanager
def open_files_limit(soft: int) -> Iterator[None]:
    """Of the processes started within."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_more_connections_than_the_nodes_default_limit_of_open_files(tmp_path: Path) -> None:
    with open_files_limit(256):
        server = start_ours(tmp_path / "data")
    try:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(400)]
        async with aiohttp.ClientSession() as session, session.get(server.url + "/healthz") as response:
            assert response.status == 200
        for _, writer in held:
            writer.close()
    finally:
        server.kill()


async def test_waiting_for_memory_does_not_count_as_the_clients_time(servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "BODIES_IN_MEMORY", 1000)
    async with servers.serving() as api:
        wide = {"tokens": [[1] * 400] * 2, "masks": [[1] * 400] * 2, "scores": [1.0, 0.0]}
        answers = await asyncio.gather(*(api.post("/scored_data", wide) for _ in range(20)))
        assert answers == [{"status": "received"}] * 20


@pytest.mark.parametrize("path", ["/scored_data", "/scored_data_list"])
async def test_a_small_body_of_millions_of_rows_is_refused(api, path: str) -> None:
    rows = b"[" + b"[]," * 60_000_000 + b"[]]"
    body = rows if path.endswith("list") else b'{"tokens":' + rows + b',"masks":[],"scores":[]}'
    sent = gzip.compress(body, compresslevel=6)
    assert len(sent) < 300_000
    async with api.session.post(api.url + path, data=sent, headers={"Content-Encoding": "gzip"}) as response:
        assert response.status == 413
        assert "arrays and objects" in (await response.json())["detail"]


@pytest.mark.parametrize("depth", [1_000, 100_000])
@pytest.mark.parametrize("route", sorted(set(ALLOWED) - {"/reset_data"}))
async def test_deeply_nested_bodies_are_answered_cleanly(api, route: str, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    bodies_to_send = [deep, b'{"a":' * depth + b"1" + b"}" * depth]
    if route.startswith("/scored_data"):
        group = json.dumps(GROUP).encode()[:-1]
        for name in ("messages", "images", "overrides", "generation_params", "advantages", "env_id", "x"):
            inner = group + b',"' + name.encode() + b'":' + deep + b"}"
            bodies_to_send.append(b"[" + inner + b"]" if route.endswith("list") else inner)
    for body in bodies_to_send:
        for method in ("GET", "POST"):
            url = api.url + route.format(id="x")
            async with api.session.request(method, url, data=body) as response:
                text = await response.text()
                assert response.status < 500, f"{method} {route}: {text}"
    assert (await api.get("/status"))["queue_size"] == 0
