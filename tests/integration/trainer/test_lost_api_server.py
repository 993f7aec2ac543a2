"""An API server that lost its volume costs rollouts, never the run: with the real server as a process."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec import structs

from clotho_contract.config import RunConfig
from clotho_trainer.rollouts.api_server import ApiServer
from clotho_trainer.rollouts.leases import LeaseSource
from integration.trainer.tiny import config, groups
from rig.trajectory_servers import ServerProcess, start_ours

TOKEN = "a-token"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        yield session


async def send_batch(session: aiohttp.ClientSession, server: ServerProcess, seed: int) -> None:
    body = msgspec.json.encode(groups(seed))
    headers = {"Content-Type": "application/json"}
    async with session.post(f"{server.url}/scored_data_list", data=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()


async def status_of(session: aiohttp.ClientSession, server: ServerProcess) -> dict[str, Any]:
    async with session.get(f"{server.url}/status") as answer:
        status: dict[str, Any] = await answer.json()
        return status


async def test_the_trainer_registers_again_at_its_step(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    volume = tmp_path / "api-server"
    server = await asyncio.to_thread(start_ours, volume, token=TOKEN)
    stop = asyncio.Event()
    run: RunConfig = config(Path("unused"))
    try:
        settings = structs.replace(run, endpoints=structs.replace(run.endpoints, api_server=server.url))
        source = LeaseSource(ApiServer(session, server.url, TOKEN, 60.0, stop), settings, "/checkpoints")
        backend: Any = SimpleNamespace(version=6)
        await source.open(backend, {})
        await send_batch(session, server, seed=0)
        held = await source.take(stop, 6)
        assert held is not None

        server.kill()
        shutil.rmtree(volume)
        server = await asyncio.to_thread(start_ours, volume, token=TOKEN, port=server.port)
        await held.trained(7, {})  # its lease is lost with the volume
        assert await source.take(stop, 7) is None
        status = await status_of(session, server)
        assert (status["registered"], status["current_step"]) == (True, 7)
        await send_batch(session, server, seed=1)
        delivery = await source.take(stop, 7)
        assert delivery is not None
        assert len(delivery.read(vocabulary=100).groups) == 2
        await delivery.trained(8, {})
        assert (await status_of(session, server))["current_step"] == 8
    finally:
        server.kill()


async def test_a_volume_restored_from_an_older_copy_costs_rollouts_only(
    tmp_path: Path, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps are behind the trainer's; what is queued in it has been trained already."""
    volume, copy = tmp_path / "api-server", tmp_path / "copy"
    server = await asyncio.to_thread(start_ours, volume, token=TOKEN)

    async def restore() -> ServerProcess:
        server.kill()
        shutil.rmtree(volume)
        shutil.copytree(copy, volume)
        return await asyncio.to_thread(start_ours, volume, token=TOKEN, port=server.port)

    stop = asyncio.Event()
    run: RunConfig = config(Path("unused"))
    settings = structs.replace(run, endpoints=structs.replace(run.endpoints, api_server=server.url))
    source = LeaseSource(ApiServer(session, server.url, TOKEN, 60.0, stop), settings, "/checkpoints")
    try:
        await source.open(SimpleNamespace(version=0), {})  # type: ignore[arg-type]
        for step in range(4):
            await send_batch(session, server, seed=step)
            if step == 1:
                await send_batch(session, server, seed=9)  # waits in the copy
                server.kill()
                shutil.copytree(volume, copy)
                server = await asyncio.to_thread(start_ours, volume, token=TOKEN, port=server.port)
            delivery = await source.take(stop, step)
            assert delivery is not None
            await delivery.trained(step + 1, {})

        server = await restore()
        assert await source.take(stop, 4) is None, "batches of the copy are not trained again"
        status = await status_of(session, server)
        assert (status["registered"], status["current_step"], status["queue_size"]) == (True, 4, 0)
        assert "older than the policy of step 4" in caplog.text

        await send_batch(session, server, seed=5)
        held = await source.take(stop, 4)
        assert held is not None
        server = await restore()
        await held.trained(5, {})  # its lease is not in the copy
        assert await source.take(stop, 5) is None
        assert (await status_of(session, server))["current_step"] == 5

        server = await restore()
        await source.open(SimpleNamespace(version=6), {})  # type: ignore[arg-type]
        assert (await status_of(session, server))["current_step"] == 6
    finally:
        server.kill()
