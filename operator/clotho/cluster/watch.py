"""A collection of the Kubernetes API: listed in pages, then watched from the version of that list on."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from clotho.api.names import SELECTOR
from clotho.cluster.client import ApiClient
from clotho.cluster.kinds import LABELLED_KINDS, RESOURCES
from clotho.cluster.nesting import IN_EVENT, bounded
from clotho.cluster.outcomes import Gone, Undecodable
from clotho.plan.model import Kind

PAGE: Final = "500"
WATCH_SECONDS: Final = 300  # then the API server checks the credentials again
SILENCE_SECONDS: Final = 75  # the API server sends a bookmark every minute: the connection is dead
LONGEST_EVENT: Final = 8 * 1024**2
SHORTEST_SECONDS: Final = 2.0  # something between us and the API server may end every watch at once

T = TypeVar("T")


class ListMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next_page: str = field(name="continue", default="")


class Page(Struct, Generic[T], frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: tuple[T, ...] | None = None  # Go encodes an empty list so


class Event(Struct, frozen=True):
    """`body`: the object as JSON, to be decoded by those who want it."""

    type: str
    body: bytes
    namespace: str
    name: str
    version: str

    @property
    def is_deleted(self) -> bool:
        return self.type == "DELETED"


class _Head(Struct, frozen=True, rename="camel"):
    namespace: str = ""
    name: str = ""
    resource_version: str = ""


class _Object(Struct, frozen=True):
    metadata: _Head = _Head()
    message: str = ""  # of a Status, where the event is an ERROR


class _Line(Struct, frozen=True):
    type: str
    object: Raw


class Collection:
    """Objects of one folder; `selection`: the label or field selector as a query parameter."""

    def __init__(self, client: ApiClient, folder: str, selection: Mapping[str, str]) -> None:
        self._client, self.folder, self._selection = client, folder, selection

    async def pages(self, item: type[T], *, only_metadata: bool = False) -> AsyncIterator[Page[T]]:
        params = {"limit": PAGE, **self._selection}
        while True:
            page = await self._client.list(self.folder, Page[item], params, only_metadata=only_metadata)  # type: ignore[valid-type]
            yield page
            if not page.metadata.next_page:
                return
            params["continue"] = page.metadata.next_page

    async def events(self, version: str) -> AsyncIterator[Event]:
        """Until the API server ends the watch, as it does regularly; raises Gone when everything must be listed again.

        A BOOKMARK has no object, only the version from which to continue.
        """
        params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        params |= {**self._selection, "resourceVersion": version}
        rest, began = b"", time.monotonic()
        async for piece in self._client.stream(self.folder, params, silence_seconds=SILENCE_SECONDS):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_EVENT:
                raise Gone(f"watch {self.folder}", "an event is too long")
            for line in lines:
                yield self._event(line)
        await asyncio.sleep(max(0.0, SHORTEST_SECONDS - (time.monotonic() - began)))

    def _event(self, line: bytes) -> Event:
        try:
            found, head = _parts(line)
        except msgspec.MsgspecError as error:
            raise Undecodable(f"watch {self.folder}", f"the event cannot be decoded: {error}") from error
        if found.type == "ERROR":
            raise Gone(f"watch {self.folder}", head.message or "the watch has ended")
        metadata = head.metadata
        return Event(found.type, bytes(found.object), metadata.namespace, metadata.name, metadata.resource_version)


def of_kind(client: ApiClient, kind: Kind, scope: str | None) -> Collection:
    """In one namespace, or in all of them; of kinds that are not ours, only what belongs to us."""
    selection = {"labelSelector": SELECTOR} if kind in LABELLED_KINDS else {}
    return Collection(client, RESOURCES[kind].folder(scope), selection)


def _parts(line: bytes) -> tuple[_Line, _Object]:
    try:
        found = msgspec.json.decode(line, type=_Line)
    except RecursionError:  # searching every line for its depth would cost more than decoding it
        found = msgspec.json.decode(bounded(line, IN_EVENT), type=_Line)
    return found, msgspec.json.decode(found.object, type=_Object)
