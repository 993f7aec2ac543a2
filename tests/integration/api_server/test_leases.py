"""Leased batches over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from clotho_api_server.state import service as service_module


def group(mark: int, size: int = 2, width: int = 1) -> dict[str, Any]:
    return {"tokens": [[mark] * width] * size, "masks": [[mark] * width] * size, "scores": [1.0] * size}


def marks(answer: dict[str, Any]) -> list[int]:
    return [item["tokens"][0][0] for item in answer["batch"]]


async def test_leased_batch_is_acknowledged_and_covered_by_a_checkpoint(api) -> None:
    await api.register(batch_size=2)
    await api.post("/scored_data_list", [group(n) for n in range(3)])
    lease = await api.post("/lease", {"wait_seconds": 20})
    assert (marks(lease), lease["step"], lease["expires_in"]) == ([0], 0, 600.0)
    assert (await api.get("/status"))["current_step"] == 0
    assert await api.post(f"/lease/{lease['lease_id']}/renew") == {"expires_in": 600.0}
    for _ in range(2):
        assert await api.post(f"/lease/{lease['lease_id']}/ack", {"step": 1}) == {"current_step": 1}
    second = await api.post("/lease", {})
    await api.post(f"/lease/{second['lease_id']}/release")
    again = await api.post("/lease", {})
    assert marks(second) == marks(again) == [1]
    await api.post(f"/lease/{again['lease_id']}/ack", {"step": 2})
    await api.post("/checkpointed", {"step": 1})
    await api.register(batch_size=2, starting_step=0)
    assert (await api.get("/status"))["current_step"] == 0
    assert [marks(await api.post("/lease", {})) for _ in range(2)] == [[1], [2]]


async def test_unknown_leases_and_leases_without_a_trainer_are_refused(api) -> None:
    assert "register" in (await api.post("/lease", {}, status=409))["detail"]
    for action in ("renew", "release"):
        assert "unknown" in (await api.post(f"/lease/nope/{action}", status=409))["detail"]
    await api.post("/lease/nope/ack", {"step": 1}, status=409)
    await api.post("/lease/nope/ack", {}, status=422)


async def test_a_trainer_waits_for_its_batch(api) -> None:
    await api.register(batch_size=2)
    assert await api.post("/lease", {"wait_seconds": 0.01}, status=204) is None
    waiting = asyncio.create_task(api.post("/lease", {"wait_seconds": 60}))
    await api.post("/scored_data", group(5))
    assert marks(await waiting) == [5]


async def test_a_client_that_gives_up_waiting_takes_nothing_with_it(api) -> None:
    await api.register(batch_size=2)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
    writer.write(b'POST /lease HTTP/1.1\r\nHost: x\r\nContent-Length: 19\r\n\r\n{"wait_seconds":60}')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
    await api.post("/scored_data", group(5))
    async with asyncio.timeout(30):
        assert marks(await api.post("/lease", {"wait_seconds": 60})) == [5]


async def test_a_batch_interrupted_by_a_disconnect_is_delivered_again(api) -> None:
    await api.register(batch_size=64, max_token_len=0)
    for mark in range(8):
        await api.post("/scored_data", group(mark, size=8, width=40_000))  # far more than sockets buffer
    for request in (
        b"GET /batch HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /lease HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
        writer.write(request)
        assert b"200 OK" in await reader.readline()
        writer.transport.abort()
        async with asyncio.timeout(60):
            await api.service.until(lambda state: state.returned_batches == 1, 60)
        assert (await api.get("/status"))["current_step"] == 0
    assert marks(await api.get("/batch")) == list(range(8))
    assert (await api.get("/status"))["current_step"] == 1


async def test_an_expired_lease_wakes_the_next_trainer(servers, monkeypatch) -> None:
    monkeypatch.setattr(service_module, "SWEEP_SECONDS", 0.01)
    async with servers.serving(limits={"lease_seconds": 0.05}) as api:
        await api.register(batch_size=2)
        await api.post("/scored_data", group(1))
        lost = await api.post("/lease", {})
        async with asyncio.timeout(30):
            again = await api.post("/lease", {"wait_seconds": 60})
        assert marks(lost) == marks(again)
        assert lost["lease_id"] != again["lease_id"]
        assert api.service.metrics.registry.get_sample_value("clotho_api_lease_expiries_total") >= 1


async def test_a_lease_outlives_a_restart_of_the_server(servers) -> None:
    async with servers.serving() as api:
        await api.register(batch_size=2)
        await api.post("/scored_data", group(1))
        lease = await api.post("/lease", {})
    async with servers.serving() as api:
        assert await api.post(f"/lease/{lease['lease_id']}/ack", {"step": 1}) == {"current_step": 1}


async def test_a_new_attempt_of_the_trainer_takes_over_the_leases_of_the_old(api) -> None:
    await api.register(batch_size=2)
    await api.post("/scored_data", group(1))
    old = await api.post("/lease", {})
    await api.register(batch_size=2)
    assert marks(await api.post("/lease", {})) == [1]
    await api.post(f"/lease/{old['lease_id']}/ack", {"step": 1}, status=409)


async def test_shutdown_answers_waiting_requests(servers) -> None:
    async with servers.serving() as api:
        await api.register(batch_size=2)
        waiting = asyncio.create_task(api.post("/lease", {"wait_seconds": 60}, status=204))
        assert await api.service.until(lambda state: state.started, 30)
        api.service.begin_closing()
        async with asyncio.timeout(30):
            await waiting
