"""A kind is listed once and then watched from the version that was reached, whatever happens to the watch."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest

from clotho.cluster import reflector as reflectors
from clotho.cluster import watch
from clotho.cluster.cache import Key
from clotho.cluster.client import ApiClient
from clotho.cluster.outcomes import ApiError, Forbidden, NotFound, Transient, Unauthorized, Undecodable
from clotho.cluster.reflector import Children, Reflector
from clotho.cluster.store import Store
from rig.objects import UID, Body, pod_body

RUN = Key("ns", "r")
Watch = Sequence[Body | bytes | ApiError]


class Server:
    """Answers each list and each watch with the next one prepared; then a watch stays open."""

    def __init__(self, lists: Sequence[Body | ApiError] = (), watches: Sequence[Watch] = ()) -> None:
        self._lists, self._watches = [*lists], [*watches]
        self.watched: list[Mapping[str, str]] = []

    async def list(self, path: str, answer: type[Any], params: Mapping[str, str], *, only_metadata: bool) -> Any:
        prepared = self._lists.pop(0)
        if isinstance(prepared, ApiError):
            raise prepared
        return msgspec.json.decode(msgspec.json.encode(prepared), type=answer)

    async def stream(self, path: str, params: Mapping[str, str], silence_seconds: float) -> AsyncIterator[bytes]:
        self.watched.append(params)
        if not self._watches:
            await asyncio.Event().wait()
        for each in self._watches.pop(0):
            if isinstance(each, ApiError):
                raise each
            line = each if isinstance(each, bytes) else msgspec.json.encode(each) + b"\n"
            yield line[:7]  # pieces end anywhere
            yield line[7:]

    def reflector(self, store: Store) -> Reflector:
        return Reflector(cast(ApiClient, self), store, "Pod", None)


def listing(version: int, *items: Body, more: str = "") -> Body:
    return {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items) or None}


def event(kind: str, body: Body) -> Body:
    return {"type": kind, "object": body}


def bookmark(version: int) -> Body:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def names(store: Store) -> set[str]:
    return {pod.name for pod in store.pods.all()}


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(reflectors, "RETRY_SECONDS", 0.0)


async def test_list_of_several_pages_replaces_what_was_known() -> None:
    store = Store()
    store.handle_event("Pod", False, pod_body("environment", 2))
    server = Server([listing(9, pod_body("trainer", 5), more="next"), listing(9, pod_body("api-server", 6))])
    await server.reflector(store).fill()
    assert names(store) == {"r-trainer", "r-api-server"}


async def test_objects_newer_than_the_list_stay() -> None:
    """They are answers to our own writes."""
    store = Store()
    store.handle_event("Pod", False, pod_body("environment", 12))
    await Server([listing(9)]).reflector(store).fill()
    assert names(store) == {"r-environment"}


async def test_events_are_announced_to_the_run_once() -> None:
    heard: list[Key] = []
    store = Store(changed=heard.append)
    server = Server([listing(3)], [[event("ADDED", pod_body("trainer", 5)), event("MODIFIED", pod_body("trainer", 5))]])
    pods = server.reflector(store)
    await pods.fill()
    await pods.follow()
    assert heard == [RUN]
    assert [pod.name for pod in store.pods_of(RUN, UID)] == ["r-trainer"]


async def test_watch_continues_from_the_last_bookmark() -> None:
    server = Server([listing(3)], [[event("ADDED", pod_body("trainer", 5)), bookmark(40)]])
    pods = server.reflector(Store())
    await pods.fill()
    await pods.follow()
    following = asyncio.create_task(pods.follow())
    while len(server.watched) < 2:  # noqa: ASYNC110 - of a fake
        await asyncio.sleep(0)
    following.cancel()
    assert [each["resourceVersion"] for each in server.watched] == ["3", "40"]
    assert all(each["labelSelector"] for each in server.watched), "only what belongs to us"


async def test_watch_that_is_too_old_lists_again() -> None:
    gone = event("ERROR", {"kind": "Status", "message": "too old resource version", "code": 410})
    pods = Server([listing(3)], [[gone]]).reflector(Store())
    await pods.fill()
    await pods.follow()
    assert not pods.is_filled


async def test_last_words_of_a_pod_are_kept_though_its_deletion_was_our_own() -> None:
    ended: list[str] = []
    store = Store(pod_ended=lambda _, pod: ended.append(pod.name))
    body = pod_body("trainer", 5)
    store.take_in("Pod", body)
    status = {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0, "message": "saved"}}}]}
    server = Server([listing(3, body)], [[event("MODIFIED", body | {"status": status}), event("DELETED", body)]])
    pods = server.reflector(store)
    await pods.fill()
    await pods.follow()
    assert ended == ["r-trainer"]
    assert names(store) == set()


async def test_object_that_cannot_be_decoded_is_skipped_and_the_next_is_not() -> None:
    skipped: list[str] = []
    store = Store(on_undecodable=skipped.append)
    odd = pod_body("trainer", 5) | {"status": {"phase": "Dancing"}}
    server = Server([listing(3)], [[event("ADDED", odd), event("ADDED", pod_body("api-server", 6))]])
    pods = server.reflector(store)
    await pods.fill()
    await pods.follow()
    assert skipped == ["Pod"]
    assert names(store) == {"r-api-server"}


async def test_event_nested_more_deeply_than_a_decoder_can_follow_is_read() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    line = msgspec.json.encode(event("ADDED", pod_body("trainer", 5) | {"extra": None}))
    pods = Server([listing(3)], [[line.replace(b'"extra":null', b'"extra":' + deep) + b"\n"]]).reflector(
        store := Store()
    )
    await pods.fill()
    await pods.follow()
    assert names(store) == {"r-trainer"}


@pytest.mark.parametrize("line", [b"<html>proxy</html>\n", b'{"type":"ADDED","object":' + b"[" * 5000 + b"\n"])
async def test_what_is_not_an_event_ends_the_watch_with_an_error(line: bytes) -> None:
    pods = Server([listing(3)], [[line]]).reflector(Store())
    await pods.fill()
    with pytest.raises(Undecodable, match="watch /api/v1/pods"):
        await pods.follow()


KINDS = 5


async def children_after(server: Server, watches: int) -> Children:
    """After so many watches were opened, or a failure, which is raised."""
    children = Children(cast(ApiClient, server), Store(), ())
    working = asyncio.create_task(children.run())
    async with asyncio.timeout(10):
        while len(server.watched) < watches and not working.done():  # noqa: ASYNC110 - of a fake
            await asyncio.sleep(0)
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    return children


async def test_children_are_known_once_every_kind_was_listed_whatever_refused_it_first() -> None:
    refused = [Forbidden("list", "not yet", 403), Transient("list", "no answer"), NotFound("list", "not yet", 404)]
    children = await children_after(Server([*refused, *[listing(3)] * KINDS]), KINDS)
    assert children.filled.is_set()


@pytest.mark.parametrize("passing", [Transient("watch", "reset"), Unauthorized("watch", "expired", 401)])
async def test_watch_that_breaks_is_opened_again_where_it_was(passing: ApiError) -> None:
    server = Server([listing(3)] * KINDS, [[bookmark(7), passing]])
    await children_after(server, KINDS + 1)
    assert sorted(each["resourceVersion"] for each in server.watched) == ["3"] * KINDS + ["7"]


@pytest.mark.parametrize("final", [Forbidden("watch", "no more", 403), NotFound("watch", "gone", 404)])
async def test_watch_that_is_refused_for_good_raises(final: ApiError) -> None:
    with pytest.raises(type(final)):
        await children_after(Server([listing(3)] * KINDS, [(), (), (), (), [final]]), sys.maxsize)
