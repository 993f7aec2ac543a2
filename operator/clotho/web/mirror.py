"""A collection of the Kubernetes API kept current for everybody who looks at it: listed once, then watched."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from clotho.cluster.client import ApiClient, Object
from clotho.cluster.nesting import IN_EVENT, bounded
from clotho.cluster.outcomes import ApiError, Forbidden, Gone, NotFound, Unauthorized

PAGE: Final = "500"
WATCH_SECONDS: Final = 300  # then the API server checks the credentials again
RETRY_SECONDS: Final = 2.0
REFUSED_RETRY_SECONDS: Final = 30.0
LONGEST_EVENT: Final = 8 * 1024**2


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
        self._client, self._folder, self._selection = client, folder, selection
        self._pulse = pulse
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
            except (Gone, msgspec.MsgspecError):  # too old, or not understood: list again
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
        params = {"limit": PAGE, **self._selection}
        while True:
            page = await self._client.list(self._folder, Object, params)
            found |= {_key(each): _slim(each) for each in page.get("items") or ()}
            metadata = page.get("metadata", {})
            if not (more := metadata.get("continue")):
                break
            params["continue"] = more
        self.objects, self.problem = found, None
        self.ready.set()
        self._pulse.beat()
        return str(metadata.get("resourceVersion", ""))

    async def _watch(self, version: str) -> str:
        """The version to continue from, once the API server has ended the watch."""
        params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        rest, began = b"", time.monotonic()
        async for piece in self._client.stream(self._folder, {**params, **self._selection, "resourceVersion": version}):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_EVENT:
                raise Gone(f"watch {self._folder}", "an event is too long")
            for line in lines:
                version = self._take(line) or version
        if time.monotonic() - began < RETRY_SECONDS:  # something in between ends every watch at once
            await asyncio.sleep(RETRY_SECONDS)
        return version

    def _take(self, line: bytes) -> str:
        event = msgspec.json.decode(bounded(line, IN_EVENT), type=_Event)
        metadata = event.object.get("metadata", {})
        if event.type == "ERROR":
            raise Gone(f"watch {self._folder}", str(event.object.get("message", "")))
        if event.type == "DELETED":
            self.objects.pop(_key(event.object), None)
        elif event.type != "BOOKMARK":
            self.objects[_key(event.object)] = _slim(event.object)
        if event.type != "BOOKMARK":
            self._pulse.beat()
        return str(metadata.get("resourceVersion", ""))


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: Object


def _key(body: Object) -> tuple[str, str]:
    metadata = body.get("metadata", {})
    return metadata.get("namespace", ""), metadata.get("name", "")


def _slim(body: Object) -> Object:
    """Who wrote which field is half of an object, and shown nowhere."""
    body.get("metadata", {}).pop("managedFields", None)
    return body
