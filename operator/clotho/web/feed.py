"""Everything that one person may read, shared by all their pages: a mirror for each collection in use."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from msgspec import Struct

from clotho.cluster.client import ApiClient, Object
from clotho.cluster.kinds import RESOURCES
from clotho.cluster.outcomes import ApiError, Forbidden, Unauthorized
from clotho.plan.model import Kind
from clotho.web.mirror import Mirror, Pulse

LINGER_SECONDS: Final = 60.0  # after the last look: the next page has its data at once
MOST_NAMESPACES: Final = 100


class Source(NamedTuple):
    """A collection, or some objects of it."""

    folder: str
    selection: tuple[tuple[str, str], ...] = ()


class Held:
    """Mirrors that one page uses for as long as it is open."""

    def __init__(self, mirrors: Sequence[Mirror]) -> None:
        self._mirrors = mirrors

    def objects(self) -> dict[tuple[str, str], Object]:
        return {key: body for mirror in self._mirrors for key, body in mirror.objects.items()}

    @property
    def problem(self) -> ApiError | None:
        """Of the first that cannot be read."""
        return next((mirror.problem for mirror in self._mirrors if mirror.problem), None)

    async def ready(self) -> None:
        """Raises where the credentials are not accepted at all."""
        await asyncio.gather(*(mirror.ready.wait() for mirror in self._mirrors))
        if isinstance(self.problem, Unauthorized):
            raise self.problem


class _Shared(Struct):
    mirror: Mirror
    users: int = 0
    release: asyncio.TimerHandle | None = None


class Feed:
    """`namespaces`: those to look into; empty finds out which may be read."""

    def __init__(self, client: ApiClient, namespaces: Sequence[str] = (), fallback: str = "") -> None:
        self.client = client
        self.pulse = Pulse()
        self._namespaces, self._fallback = tuple(namespaces), fallback
        self._shared: dict[Source, _Shared] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        return not self._shared

    async def close(self) -> None:
        for source in tuple(self._shared):
            self._drop(source)
        await asyncio.gather(*self._closing)
        await self.client.__aexit__()

    @asynccontextmanager
    async def hold(self, *sources: Source) -> AsyncIterator[Held]:
        held = [self._take(source) for source in sources]
        try:
            yield Held(held)
        finally:
            for source in sources:
                self._give(source)

    def _take(self, source: Source) -> Mirror:
        shared = self._shared.get(source)
        if shared is None:
            shared = _Shared(Mirror(self.client, source.folder, dict(source.selection), self.pulse))
            self._shared[source] = shared
        if shared.release is not None:
            shared.release.cancel()
            shared.release = None
        shared.users += 1
        return shared.mirror

    def _give(self, source: Source) -> None:
        shared = self._shared.get(source)
        if shared is None:  # the feed was closed
            return
        shared.users -= 1
        if not shared.users:
            loop = asyncio.get_running_loop()
            shared.release = loop.call_later(LINGER_SECONDS, self._drop, source)

    def _drop(self, source: Source) -> None:
        shared = self._shared.pop(source)
        if shared.release is not None:
            shared.release.cancel()
        task = asyncio.ensure_future(shared.mirror.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def everywhere(self, kind: Kind, also: Sequence[str] = ()) -> list[Source]:
        """Where objects of a kind are read from: all namespaces at once, else those that can be found or are named."""
        if self._namespaces:
            return [of_kind(kind, each) for each in self._namespaces]
        whole = of_kind(kind)
        async with self.hold(whole) as held:
            await held.ready()
            if not isinstance(held.problem, Forbidden):
                return [whole]
        named = [*also, *([self._fallback] if self._fallback else [])]
        found = dict.fromkeys([*named, *await self._all_namespaces()])
        return [of_kind(kind, each) for each in [*found][:MOST_NAMESPACES]]

    async def _all_namespaces(self) -> list[str]:
        source = Source("/api/v1/namespaces")
        async with self.hold(source) as held:
            await held.ready()
            return sorted(name for _, name in held.objects())


def of_kind(kind: Kind, namespace: str | None = None, **fields: str) -> Source:
    return Source(RESOURCES[kind].folder(namespace), _selection(fields))


def config_map(namespace: str, name: str) -> Source:
    return Source(f"/api/v1/namespaces/{namespace}/configmaps", _selection({"metadata.name": name}))


def events_of(namespace: str, name: str) -> Source:
    about = {"involvedObject.kind": "TrainingRun", "involvedObject.name": name}
    return Source(f"/api/v1/namespaces/{namespace}/events", _selection(about))


def _selection(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    chosen = ",".join(f"{name}={value}" for name, value in fields.items())
    return (("fieldSelector", chosen),) if chosen else ()
