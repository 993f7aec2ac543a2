"""Which pods are probed for a description, and how untrusted answers are handled."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from clotho.cluster import descriptions
from clotho.cluster.cache import Key
from clotho.cluster.descriptions import Descriptions
from clotho.cluster.store import Store
from rig.objects import Body

KEY = Key("ns", "e", "Environment")


def a_store(*, is_ready: bool = True, address: str = "127.0.0.1") -> Store:
    store = Store()
    metadata = {"name": "e", "namespace": "ns", "uid": "uid-e", "resourceVersion": "1"}
    store.handle_event("Environment", False, {"metadata": metadata, "spec": {}})
    labels = {"clotho.dev/described-environment": "e", "clotho.dev/owner-uid": "uid-e"}
    pod: Body = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "pod-1", "resourceVersion": "1", "labels": labels},
        "status": {
            "phase": "Running",
            "podIP": address,
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
        },
    }
    store.handle_event("Pod", False, pod)
    return store


@asynccontextmanager
async def answering(body: bytes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body)

    app = web.Application()
    app.router.add_get("/description", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(descriptions, "ENVIRONMENT_STATUS_PORT", runner.addresses[0][1])
    try:
        yield
    finally:
        await runner.cleanup()


async def test_a_ready_pod_is_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []
    asked = Descriptions(a_store(), 2.0, failures.append)
    assert asked.has_unprobed_pod(KEY)
    async with answering(b'{"name": "letters", "fields": [{"name": "a"}]}', monkeypatch):
        assert await asked.probe(KEY) == (True, None)
    found = asked.answer(KEY)
    assert found is not None
    assert found.answer is not None
    assert (found.pod_uid, found.answer.name, failures) == ("pod-1", "letters", [])
    assert not asked.has_unprobed_pod(KEY)
    asked.forget(KEY)
    assert asked.answer(KEY) is None


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"name": 7}', b'{"name": "x", "fields": "all"}', b"x" * 300_000]
)
async def test_invalid_answers_are_counted_and_retried(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []
    asked = Descriptions(a_store(), 2.0, failures.append)
    async with answering(body, monkeypatch):
        assert await asked.probe(KEY) == (False, descriptions.RETRY_SECONDS)
    assert failures == ["environment"]
    assert asked.answer(KEY) is None


@pytest.mark.parametrize("store", [a_store(is_ready=False), a_store(address=""), Store()])
async def test_no_pod_is_probed_before_it_is_ready(store: Store) -> None:
    asked = Descriptions(store, 2.0, lambda _: None)
    assert not asked.has_unprobed_pod(KEY)
    assert await asked.probe(KEY) == (False, None)
