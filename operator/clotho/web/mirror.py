"""A collection of the Kubernetes API kept current for everybody who looks at it: listed once, then watched."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from clotho.cluster.client import ApiClient, Object
from clotho.cluster.nesting import bounded
from clotho.cluster.outcomes import ApiError, Forbidden, Gone, NotFound, Unauthorized, Undecodable
from clotho.cluster.watch import Collection, Event

RETRY_SECONDS: Final = 2.0
REFUSED_RETRY_SECONDS: Final = 30.0


class Pulse:
    """Counts changes, and wakes those who wait for the next one."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def beat(self) -> None:
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, count: int, seconds: float) -> bool:
        """Whether there was a change since `count`, within that time."""
        if self.count == count:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._next.wait()
        return self.count != count


class Mirror:
    """`objects` by namespace and name. `problem`: why there are none, as the API server explains it."""

    def __init__(self, client: ApiClient, folder: str, selection: Mapping[str, str], pulse: Pulse) -> None:
        self._collection, self._pulse = Collection(client, folder, selection), pulse
        self.objects: dict[tuple[str, str], Object] = {}
        self.problem: ApiError | None = None
        self.ready = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            try:
                version = await self._list()
                while version:
                    version = await self._watch(version)
            except (Gone, Undecodable, msgspec.MsgspecError):  # too old, or not understood: list again
                await asyncio.sleep(RETRY_SECONDS)
            except ApiError as error:
                await self._fail(error)

    async def _fail(self, error: ApiError) -> None:
        """What can no longer be read is no longer shown; an API server that restarts leaves the last state."""
        is_refused = isinstance(error, Unauthorized | Forbidden | NotFound)
        if is_refused:
            self.objects = {}
        self.problem = error
        self.ready.set()
        self._pulse.beat()
        await asyncio.sleep(REFUSED_RETRY_SECONDS if is_refused else RETRY_SECONDS)

    async def _list(self) -> str:
        found: dict[tuple[str, str], Object] = {}
        version = ""
        async for page in self._collection.pages(Object):
            found |= {_key(each): _slim(each) for each in page.items or ()}
            version = page.metadata.resource_version
        self.objects, self.problem = found, None
        self.ready.set()
        self._pulse.beat()
        return version

    async def _watch(self, version: str) -> str:
        """The version to continue from, once the API server has ended the watch."""
        async for event in self._collection.events(version):
            if event.type != "BOOKMARK":
                self._take(event)
            version = event.version or version
        return version

    def _take(self, event: Event) -> None:
        if event.is_deleted:
            self.objects.pop((event.namespace, event.name), None)
        else:
            self.objects[event.namespace, event.name] = _slim(msgspec.json.decode(bounded(event.body), type=Object))
        self._pulse.beat()


def _key(body: Object) -> tuple[str, str]:
    metadata = body.get("metadata", {})
    return metadata.get("namespace", ""), metadata.get("name", "")


def _slim(body: Object) -> Object:
    """Who wrote which field is half of an object, and shown nowhere."""
    body.get("metadata", {}).pop("managedFields", None)
    return body
