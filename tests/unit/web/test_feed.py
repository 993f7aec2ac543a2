"""Mirrors are shared while pages use them, and end afterwards."""

import asyncio
from typing import cast

import pytest

from clotho.cluster.client import ApiClient
from clotho.cluster.outcomes import Forbidden
from clotho.web import feed
from clotho.web.access import Reader
from clotho.web.feed import Feed, of_kind
from clotho.web.pages import table_page
from rig.fake_api import FakeApi

ALL = "/apis/clotho.dev/v1alpha1/trainingruns"


def refusing(*paths: str) -> FakeApi:
    api = FakeApi()
    api.refusals = {f"list {path}": Forbidden("list", "not yours", 403, "Forbidden") for path in paths}
    return api


async def test_pages_share_a_mirror_that_ends_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "LINGER_SECONDS", 0.0)
    api = refusing(ALL)
    shared = Feed(cast(ApiClient, api))
    source = of_kind("TrainingRun")
    async with shared.hold(source) as first, shared.hold(source) as second:
        await first.ready()
        await second.ready()
    assert api.requests == [f"list {ALL}"]
    async with asyncio.timeout(10):
        while not shared.is_idle:  # noqa: ASYNC110 - a timer of the event loop ends it
            await asyncio.sleep(0)


async def test_feed_that_is_closed_leaves_no_task_and_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "LINGER_SECONDS", 0.0)
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    api = refusing(ALL)
    closing = Feed(cast(ApiClient, api))
    async with closing.hold(of_kind("TrainingRun")) as held:
        await held.ready()
    await closing.close()
    await asyncio.sleep(0)  # a timer that is left would fire now
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert complaints == []


async def test_without_rights_to_all_namespaces_the_reader_is_asked_for_theirs() -> None:
    reader = Reader(Feed(cast(ApiClient, refusing(ALL, "/api/v1/namespaces"))))
    async with table_page(reader.feed, reader.rows, "TrainingRun") as page:
        parts = page.parts()
    assert list(parts) == ["scope"]
    assert b"name those to show" in parts["scope"]
    await reader.feed.close()
