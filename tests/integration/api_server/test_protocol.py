"""Atropos' endpoints as unchanged clients use them, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import sqlite3
from typing import Any

import aiohttp
import msgspec
import pytest

from clotho_api_server.http.access import single_token
from clotho_api_server.state import service as service_module
from clotho_api_server.state.ledger import Ledger
from clotho_contract import request_body
from clotho_contract.api_protocol import ApiStatus


def group(mark: int, size: int = 2, **fields: Any) -> dict[str, Any]:
    return {"tokens": [[mark]] * size, "masks": [[mark]] * size, "scores": [1.0] + [0.0] * (size - 1), **fields}


def marks(batch: list[dict[str, Any]]) -> list[int]:
    return [item["tokens"][0][0] for item in batch]


async def test_evaluations_are_kept_and_bounded(api) -> None:
    await api.register(batch_size=8)
    evaluation = {"environment": "env", "figures": {"accuracy": 0.123456}, "step": 3}
    assert await api.post("/evaluations", evaluation) == {"status": "received"}
    await api.post("/evaluations", {"environment": "env", "figures": {"accuracy": 1}})
    kept = (await api.get("/evaluations"))["evaluations"]
    assert [(each["environment"], each["step"], each["figures"]) for each in kept] == [
        ("env", 3, {"accuracy": 0.1235}),
        ("env", 0, {"accuracy": 1}),
    ]
    for figures in ({}, {"x" * 200: 1}, {str(n): 1 for n in range(33)}, {"accuracy": "high"}):
        assert "detail" in await api.post("/evaluations", {"environment": "env", "figures": figures}, status=422)


async def test_register_send_and_fetch_a_batch(api) -> None:
    assert await api.get("/") == {"message": "AtroposLib API"}
    assert await api.get("/info") == {"batch_size": -1, "max_token_len": -1}
    assert await api.get("/wandb_info") == {"group": None, "project": None}
    assert (await api.get("/batch"))["status"] == "error"
    assert isinstance((await api.register(batch_size=8))["uuid"], int)
    environment = {"max_token_length": 64, "desired_name": "env", "weight": 1.0, "group_size": 4}
    assert await api.post("/register-env", environment) == {"status": "wait for trainer to start"}
    assert await api.get("/batch") == {"batch": None}
    assert await api.post("/register-env", environment) == {
        "status": "success",
        "env_id": 0,
        "wandb_name": "env_0",
        "checkpoint_dir": "/checkpoints",
        "starting_step": 0,
        "checkpoint_interval": 5,
        "num_steps": 100,
    }
    assert await api.get("/info") == {"batch_size": 8, "max_token_len": 64}
    assert await api.get("/wandb_info") == {"group": "group", "project": "project"}
    for mark in (1, 2):
        assert await api.post("/scored_data", group(mark, 4, env_id=0)) == {"status": "received"}
    status = await api.get("/status-env", json={"env_id": 0})
    assert (status["queue_size"], status["self_queue_size"], status["env_weight"]) == (2, 2, 1.0)
    batch = (await api.get("/batch"))["batch"]
    assert marks(batch) == [1, 2]
    assert batch[0]["overrides"] is None  # trainers index these fields without asking
    assert (await api.get("/status"))["current_step"] == 1
    assert (await api.get("/latest_example"))["tokens"] == [[2]] * 4
    assert await api.get("/batch") == {"batch": None}
    assert await api.post("/disconnect-env", {"env_id": 0}) == {"status": "success"}
    assert (await api.post("/disconnect-env", {"env_id": 7}))["status"] == "failure"
    assert (await api.get("/status-env", json={"env_id": 0}))["current_step"] == 1


async def test_lists_and_partial_groups_are_accepted(api) -> None:
    await api.register(batch_size=4)
    await api.register_environment(group_size=4)
    answer = await api.post("/scored_data_list", [group(1, 4), group(2, 3, env_id=0)])
    assert answer == {"status": "received", "groups_processed": 2, "buffered": 1, "last_buffer_size": 3}
    assert await api.post("/scored_data", group(3, 1, env_id=0)) == {"status": "buffered", "buffer_size": 0}
    assert marks((await api.get("/batch"))["batch"]) == [1]
    assert marks((await api.get("/batch"))["batch"]) == [2, 3]
    assert await api.post("/scored_data_list", []) == {"status": "received", "groups_processed": 0}


async def test_gzip_bodies_are_accepted(api) -> None:
    body = gzip.compress(json.dumps(group(7, 4)).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    async with api.session.post(api.url + "/scored_data", data=body, headers=headers) as response:
        assert (response.status, await response.json()) == (200, {"status": "received"})
    async with api.session.post(api.url + "/scored_data", data=b"nonsense", headers=headers) as response:
        assert response.status == 400
    assert (await api.get("/status"))["queue_size"] == 1


async def test_invalid_groups_are_refused_with_the_field_and_not_enqueued(api) -> None:
    await api.register(max_token_len=3)
    answer = await api.post("/scored_data", group(1, scores=[1.0]), status=422)
    assert answer["detail"][0]["loc"] == ["body", "scores"]
    nan = json.dumps(group(1, scores=[0.0, float("nan")]))
    async with api.session.post(api.url + "/scored_data", data=nan) as response:
        assert response.status == 422
        assert (await response.json())["detail"][0]["loc"] == ["body", "scores", 1]
    too_long = await api.post("/scored_data_list", [group(1), group(2, tokens=[[1] * 4, [1]])], status=422)
    assert too_long["detail"][0]["loc"] == ["body", 1, "tokens", 0]
    assert (await api.post("/register-env", {"desired_name": None}, status=422))["detail"][0]["loc"]
    assert (await api.get("/status"))["queue_size"] == 0


async def test_a_large_group_is_returned_unchanged(api) -> None:
    await api.register(batch_size=2, max_token_len=0)
    tokens = [list(range(100_000)), list(range(50_000))]
    logprobs = [[-0.123456789] * len(row) for row in tokens]
    await api.post("/scored_data", group(0, tokens=tokens, masks=tokens, inference_logprobs=logprobs))
    [item] = (await api.get("/batch"))["batch"]
    assert item["tokens"] == tokens
    assert item["inference_logprobs"] == logprobs


async def test_everything_survives_a_restart(servers) -> None:
    async with servers.serving() as api:
        await api.register(batch_size=4, starting_step=3)
        await api.register_environment(desired_name="keeps")
        await api.post("/scored_data_list", [group(n, env_id=0) for n in range(3)])
        before = await api.get("/status-env", json={"env_id": 0})
    async with servers.serving() as api:
        assert await api.get("/status-env", json={"env_id": 0}) == before
        assert (await api.get("/latest_example"))["tokens"] == [[2], [2]]
        assert await api.get("/info") == {"batch_size": 4, "max_token_len": 64}
        assert marks((await api.get("/batch"))["batch"]) == [0, 1]
        assert (await api.get("/status"))["current_step"] == 4
        assert (await api.post("/register-env", {**ENVIRONMENT, "desired_name": "keeps"}))["wandb_name"] == "keeps_1"


ENVIRONMENT = {"max_token_length": 64, "desired_name": "env", "weight": 1.0, "group_size": 2}


async def test_a_silent_environment_is_disconnected_until_its_next_request(servers) -> None:
    async with servers.serving(environment_timeout=0.1) as api:
        await api.register()
        await api.register_environment(min_batch_allocation=0.5)
        await api.post("/scored_data_list", [group(1), group(2)])
        assert await api.get("/batch") == {"batch": None}
        async with asyncio.timeout(30):
            assert await api.service.until(lambda state: not state.environments[0].connected, 30)
        assert marks((await api.get("/batch"))["batch"]) == [1, 2]
        await api.get("/status-env", json={"env_id": 0})
        assert api.service.state.environments[0].connected


async def test_status_has_the_fields_the_operator_reads(api) -> None:
    await api.register()
    await api.register_environment(desired_name="gsm8k")
    await api.post("/scored_data", group(1, env_id=0))
    async with api.session.get(api.url + "/status") as response:
        status = msgspec.json.decode(await response.read(), type=ApiStatus)
    assert (status.current_step, status.queue_size, status.queue_sequences) == (0, 1, 2)
    assert status.registered
    assert not status.full
    assert status.queue_bytes > 0
    assert [(env.name, env.queued_groups) for env in status.environments] == [("gsm8k_0", 1)]


async def test_metrics_are_labelled_by_environment(servers) -> None:
    async with servers.serving(limits={"max_staleness": 1}) as api:
        await api.register(starting_step=5)
        await api.register_environment(desired_name="gsm8k")
        stale = group(1, env_id=0, generation_params={"policy_version": 1})
        assert await api.post("/scored_data", stale) == {"status": "dropped"}
        await api.post(
            "/scored_data_list", [group(n, env_id=0, generation_params={"policy_version": 4}) for n in (2, 3)]
        )
        await api.post("/scored_data", group(4, scores=[]), status=422)
        await api.get("/batch")
        async with api.session.get(api.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
    for expected in (
        'clotho_api_groups_received_total{environment="gsm8k"} 2.0',
        'clotho_api_groups_dropped_total{environment="gsm8k"} 1.0',
        'clotho_api_groups_trained_total{environment="gsm8k"} 2.0',
        'clotho_api_groups_rejected_total{environment="unknown",reason="invalid"} 1.0',
        'clotho_api_staleness_steps_bucket{le="1.0"} 2.0',
        "clotho_api_current_step 6.0",
        "clotho_api_queue_groups 0.0",
        "clotho_api_batch_wait_seconds_count 1.0",
    ):
        assert expected in lines


async def test_a_full_queue_answers_429_to_new_clients_and_holds_old_ones(servers) -> None:
    new = {"X-Clotho-Protocol": "1"}
    async with servers.serving(limits={"max_off_policy_batches": 1, "max_queue_bytes": 700}) as api:
        await api.register(batch_size=2)
        await api.post("/scored_data", group(1), headers=new)
        async with api.session.post(api.url + "/scored_data", json=group(2), headers=new) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) > 0
        for mark in (2, 3):
            await api.post("/scored_data", group(mark))
        assert (await api.get("/status"))["full"]
        async with api.session.get(api.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        assert "clotho_api_queue_limit_bytes 700.0" in lines
        assert 'clotho_api_groups_rejected_total{environment="unknown",reason="full"} 1.0' in lines
        assert (await api.post("/scored_data", group(4), status=503))["detail"].startswith("the queue is full")
        assert (await api.get("/status"))["queue_size"] == 3
    async with servers.serving(limits={"max_queue_bytes": 700}, hold_when_full=60.0) as api:
        held = asyncio.create_task(api.post("/scored_data", group(4)))
        await api.get("/batch")
        assert await held == {"status": "received"}


async def test_routes_require_their_token(servers) -> None:
    async with servers.serving(access=single_token("secret", "admin")) as api:
        for path in ("/", "/healthz", "/readyz", "/metrics"):
            async with api.session.get(api.url + path) as response:
                assert response.status == 200
        async with api.session.get(api.url + "/status") as response:
            assert response.status == 401
            assert "token" in (await response.json())["detail"]
        with_password = api.url.replace("http://", "http://anybody:secret@")
        async with api.session.get(with_password + "/status") as response:
            assert response.status == 200
        async with api.session.get(api.url + "/status", headers={"Authorization": "Bearer secret"}) as response:
            assert response.status == 200
        async with api.session.get(with_password + "/reset_data") as response:
            assert response.status == 403
        async with api.session.get(api.url + "/reset_data", headers={"Authorization": "Bearer admin"}) as response:
            assert (response.status, await response.text()) == (200, "Reset successful")


async def test_reset_clears_registration_and_queue(api) -> None:
    await api.register(starting_step=4)
    await api.post("/scored_data", group(1))
    async with api.session.get(api.url + "/reset_data") as response:
        assert (response.status, await response.text()) == (200, "Reset successful")
    assert (await api.get("/info"))["batch_size"] == -1
    status = await api.get("/status")
    assert (status["current_step"], status["queue_size"]) == (0, 0)
    assert (await api.get("/latest_example"))["tokens"] == []


async def test_bodies_that_are_too_large_are_refused(servers) -> None:
    async with servers.serving(max_body_bytes=1000) as api:
        answer = await api.post("/scored_data", group(1, tokens=[[1] * 1000, [1]]), status=413)
        assert "the limit is 1000" in answer["detail"]
        bomb = gzip.compress(bytes(100_000))
        headers = {"Content-Encoding": "gzip"}
        async with api.session.post(api.url + "/scored_data", data=bomb, headers=headers) as response:
            assert response.status == 413

        async def endless():
            for _ in range(100):
                yield b" " * 100

        async with api.session.post(api.url + "/scored_data", data=endless()) as response:
            assert response.status == 413
        await api.post("/register", {"wandb_group": "x" * 2_000_000}, status=413)


async def test_a_body_that_arrives_too_slowly_is_refused(api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "LIMIT_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
    writer.write(b"POST /scored_data HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    async with asyncio.timeout(30):
        assert b" 408 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
async def test_a_full_disk_is_survived(api, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    await api.register(batch_size=2)
    await api.post("/scored_data", group(1))

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        refused = await api.post("/scored_data", group(2), headers={"Idempotency-Key": "two"}, status=503)
        assert "No space left" in refused["detail"]
    assert (await api.get("/status"))["queue_size"] == 1
    await api.post("/scored_data", group(2), headers={"Idempotency-Key": "two"})
    assert [marks((await api.get("/batch"))["batch"]) for _ in range(2)] == [[1], [2]]


async def test_a_failed_write_does_not_end_the_watch_over_environments(
    servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "SWEEP_SECONDS", 0.01)
    failures = 0

    def fails_at_first(ledger: Ledger, env_id: int, connected: bool) -> None:
        nonlocal failures
        failures += 1
        if failures < 3:
            raise sqlite3.OperationalError("database or disk is full")
        set_connected(ledger, env_id, connected)

    set_connected = Ledger.set_connected
    async with servers.serving(environment_timeout=0.05) as api:
        await api.register()
        await api.register_environment()
        monkeypatch.setattr(Ledger, "set_connected", fails_at_first)
        assert await api.service.until(lambda state: not state.environments[0].connected, 30)
    assert failures == 3


async def test_a_full_index_is_survived(api) -> None:
    await api.register(batch_size=2)
    await api.post("/scored_data", group(1))
    many = [group(n) for n in range(2, 2000)]
    await api.service.change(lambda ledger: ledger._db.execute("PRAGMA max_page_count = 1").fetchone())
    assert "full" in (await api.post("/scored_data_list", many, status=503))["detail"]
    assert (await api.get("/status"))["queue_size"] == 1
    await api.service.change(lambda ledger: ledger._db.execute("PRAGMA max_page_count = 1000000").fetchone())
    await api.post("/scored_data_list", many)
    assert [marks((await api.get("/batch"))["batch"]) for _ in range(2)] == [[1], [2]]


async def test_groups_sent_again_with_their_key_are_kept_once(servers) -> None:
    key = {"Idempotency-Key": "0b9e5ac4"}
    async with servers.serving() as api:
        await api.register(batch_size=4, max_token_len=0)
        await api.register_environment(group_size=4)
        answers = [await api.post("/scored_data", group(1, 3, env_id=0), headers=key) for _ in range(2)]
        assert answers == [{"status": "buffered", "buffer_size": 3}] * 2
        other = {"Idempotency-Key": "a list"}
        for _ in range(2):
            answer = await api.post("/scored_data_list", [group(2, 4), group(3, 4)], headers=other)
            assert answer == {"status": "received", "groups_processed": 2}
        assert (await api.get("/status"))["queue_size"] == 2
    async with servers.serving() as api:
        assert await api.post("/scored_data", group(1, 3, env_id=0), headers=key) == answers[0]
        assert (await api.get("/status"))["queue_size"] == 2
        received = api.service.metrics.registry.get_sample_value(
            "clotho_api_groups_received_total", {"environment": "env"}
        )
        assert received is None


@pytest.mark.parametrize("key", ["", "x" * 256, "schl\xfcssel", "a\tb"])
async def test_keys_that_cannot_be_kept_are_refused(api, key: str) -> None:
    answer = await api.post("/scored_data", group(1), headers={"Idempotency-Key": key}, status=400)
    assert "1 to 255 printable ASCII characters" in answer["detail"]
    assert (await api.get("/status"))["queue_size"] == 0


async def test_unknown_paths_methods_and_environments_are_refused(api) -> None:
    await api.post("/nowhere", {}, status=404)
    await api.post("/status", {}, status=405)
    async with api.session.get(api.url + "/status-env", json={"env_id": 3}) as response:
        assert response.status == 404
        assert "POST /register-env" in (await response.json())["detail"]


async def test_many_clients_at_once_share_commits(api) -> None:
    await api.register(batch_size=64, max_token_len=0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(mark: int) -> None:
            async with session.post(api.url + "/scored_data", json=group(mark, 1)) as response:
                assert response.status == 200

        await asyncio.gather(*(send(mark) for mark in range(256)))
    seen: list[int] = []
    for _ in range(4):
        seen += marks((await api.get("/batch"))["batch"])
    assert sorted(seen) == list(range(256))
    registry = api.service.metrics.registry
    assert registry.get_sample_value("clotho_api_disk_write_seconds_count") < 200
