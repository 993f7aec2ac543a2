"""With a full volume groups are refused with the cause; leases and acknowledgements drain it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import PropertyMock

import pytest

from clotho_api_server.state import disk
from clotho_api_server.state import service as service_module
from clotho_api_server.state.disk import RESERVE_BYTES, Disk
from integration.api_server.conftest import Servers
from rig.volumes import MIB, small_volume

ENVIRONMENT = {"max_token_length": 8, "desired_name": "e", "weight": 1.0, "group_size": 2}


def group(mark: int) -> dict[str, object]:
    return {"tokens": [[mark]] * 2, "masks": [[mark]] * 2, "scores": [1.0, 0.0]}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> PropertyMock:
    space = PropertyMock(return_value=10 * RESERVE_BYTES)
    monkeypatch.setattr(Disk, "free_bytes", space)
    return space


async def text(api, path: str) -> tuple[int, str]:
    async with api.session.get(api.url + path) as response:
        return response.status, await response.text()


async def test_the_queue_drains_although_the_volume_is_full(api, free: PropertyMock) -> None:
    await api.register(batch_size=2)
    await api.post("/scored_data", group(1))
    free.return_value = RESERVE_BYTES - 1
    refused = await api.post("/scored_data", group(2), status=503)
    assert "the API server's volume is full" in refused["detail"]
    lease = await api.post("/lease", {})
    refused = await api.post("/register-env", ENVIRONMENT, status=503)
    assert "the API server's volume is full" in refused["detail"], "the reserve is not for registrations without end"
    assert await api.post(f"/lease/{lease['lease_id']}/ack", {"step": 1}) == {"current_step": 1}
    free.return_value = 10 * RESERVE_BYTES
    await api.post("/scored_data", group(2))


async def test_the_cause_is_in_the_status_the_readiness_and_the_metrics(api, free: PropertyMock) -> None:
    assert ((await api.get("/status"))["storage_problem"], await text(api, "/readyz")) == ("", (200, "ok\n"))
    assert "clotho_api_disk_full 0.0" in (await text(api, "/metrics"))[1]
    free.return_value = 5
    assert (await api.get("/status"))["storage_problem"] == disk.PROBLEM
    assert await text(api, "/readyz") == (503, disk.PROBLEM + "\n")
    assert (await text(api, "/healthz"))[0] == 200
    metrics = (await text(api, "/metrics"))[1]
    assert "clotho_api_disk_full 1.0" in metrics
    assert "clotho_api_disk_free_bytes 5.0" in metrics


async def test_trained_groups_make_room_before_a_checkpoint_holds_them(
    api, free: PropertyMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that waits for groups saves no checkpoint, so nothing else would free the space."""
    monkeypatch.setattr(service_module, "SWEEP_SECONDS", 0.01)
    await api.register(batch_size=2)
    await api.post("/scored_data", group(1))
    lease = await api.post("/lease", {})
    await api.post(f"/lease/{lease['lease_id']}/ack", {"step": 1})
    assert api.service.state.retained_bytes > 0
    free.return_value = 5
    async with asyncio.timeout(30):
        assert await api.service.until(lambda state: state.retained_bytes == 0, 30)


async def test_a_body_that_would_use_the_reserve_is_refused(api, free: PropertyMock) -> None:
    free.return_value = RESERVE_BYTES + 50
    await api.post("/scored_data", group(1), status=503)
    assert (await text(api, "/readyz"))[0] == 200


async def test_the_status_is_bounded_however_many_environments_register(api) -> None:
    await api.register(batch_size=2)
    await api.get("/batch")
    for number in range(120):
        await api.post(
            "/register-env", {"max_token_length": 9, "desired_name": str(number), "weight": 1, "group_size": 2}
        )
    status = await api.get("/status")
    assert (len(status["environments"]), status["environments_connected"]) == (100, 120)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A real file system with 32 MiB for groups."""
    with small_volume(tmp_path / "volume", RESERVE_BYTES + 32 * MIB) as folder:
        yield folder


def large_group(mark: int) -> dict[str, object]:
    """Some MB: random ids cannot be compressed."""
    chooser = random.Random(mark)  # noqa: S311
    tokens = [mark, *(chooser.randrange(2**31) for _ in range(60_000))]
    return {"tokens": [tokens] * 2, "masks": [tokens] * 2, "scores": [1.0, 0.0]}


async def test_a_real_volume_that_is_full_loses_no_group_and_takes_more_once_it_was_drained(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "SWEEP_SECONDS", 0.01)
    servers, accepted, trained = Servers(volume), 0, []
    async with servers.serving() as api:
        await api.register(batch_size=2, max_token_len=100_000)
        for _ in range(100):
            async with api.session.post(api.url + "/scored_data", json=large_group(accepted)) as answer:
                if answer.status == 503:
                    break
            accepted += 1
        assert 4 < accepted < 100, "it was never full"
    async with servers.serving() as api:  # a restart on the full volume
        for step in range(1, accepted + 1):
            lease = await api.post("/lease", {})
            trained.append(lease["batch"][0]["tokens"][0][0])
            await api.post(f"/lease/{lease['lease_id']}/ack", {"step": step})
        assert sorted(trained) == list(range(accepted))
        assert await api.service.until(lambda state: state.retained_bytes == 0, 30)
        await api.post("/scored_data", large_group(accepted))
