"""What Kueue has decided about runs. Its Workloads are watched from the first run on that asks for them.

Kueue may be installed or removed at any time, so this watch is not one of Kopf's: those need their kinds from the start
to the end.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from clotho.api.metadata import Metadata
from clotho.api.names import KUEUE_GROUP, KUEUE_VERSION, PRIORITY_LABEL, QUEUE_LABEL, SELECTOR
from clotho.api.training_run import TrainingRun
from clotho.cluster.cache import Key
from clotho.cluster.client import ApiClient
from clotho.cluster.kinds import RESOURCES
from clotho.cluster.nesting import IN_EVENT, bounded
from clotho.cluster.outcomes import ApiError, Forbidden, Gone, NotFound, Undecodable
from clotho.cluster.store import AnyRun, Store
from clotho.plan.workloads import Flavour, KueueSeen, Workload

log = logging.getLogger(__name__)
RETRY_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 300  # then everything is listed again, in case a deletion was missed
_LATE_SECONDS: Final = 30  # after which the connection is dead: the server has not ended the watch in time
_ROOT: Final = f"/apis/{KUEUE_GROUP}/{KUEUE_VERSION}"


class _ListMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = "0"


class _Listed(Struct, frozen=True):
    metadata: _ListMetadata
    items: tuple[dict[str, Any], ...] | None = None


class _WatchEvent(Struct, frozen=True):
    type: str
    object: dict[str, Any]


class _PriorityClass(Struct, frozen=True):
    value: int = 0


class _ResourceFlavor(Struct, frozen=True):
    spec: Flavour = Flavour()


class Kueue:
    """`namespaces` empty means the whole cluster."""

    def __init__(self, client: ApiClient, store: Store, namespaces: tuple[str, ...]) -> None:
        self._client, self._store = client, store
        self._scopes: tuple[str | None, ...] = namespaces or (None,)
        self._versions: dict[str | None, str] = {}  # from which to watch; empty as long as nothing is watched
        self._is_watching = asyncio.Event()
        self._starting = asyncio.Lock()
        self._flavours: dict[str, dict[str, Flavour]] = {}  # by the uid of an admitted Workload

    async def observe(self, key: Key, run: AnyRun) -> KueueSeen | None:
        """None: the run has nothing to do with Kueue."""
        asks = isinstance(run, TrainingRun) and QUEUE_LABEL in run.metadata.labels
        if asks and not self._is_watching.is_set():
            try:
                await self._start()
            except NotFound:
                return KueueSeen(absence="NotInstalled")
            except Forbidden:
                return KueueSeen(absence="Forbidden")
        workload = self._store.workload_of(key, run.metadata.uid)
        if not asks:
            return KueueSeen(workload=workload) if workload is not None else None
        if workload is not None and workload.is_admitted:
            return KueueSeen(workload=workload, flavours=await self._flavours_of(workload))
        name = run.metadata.labels.get(PRIORITY_LABEL)
        return KueueSeen(workload=workload, priority=await self._priority(name) if name else None)

    async def run(self) -> None:
        """Follow the Workloads, whenever there are any to follow."""
        while True:
            await self._is_watching.wait()
            await asyncio.gather(*map(self._follow, self._scopes))
            self._is_watching.clear()

    async def _start(self) -> None:
        """All Workloads are known before the first decision: a run without one has no pods."""
        async with self._starting:
            if not self._is_watching.is_set():
                self._versions = {scope: await self._fill(scope) for scope in self._scopes}
                self._is_watching.set()

    async def _follow(self, scope: str | None) -> None:
        """Until Kueue is removed."""
        version = self._versions[scope]
        while True:
            try:
                await self._watch(scope, version or await self._fill(scope))
            except NotFound:
                log.warning("Kueue was removed from the cluster")
                self._forget_absent(scope, (), sys.maxsize)
                return
            except ApiError as error:
                log.warning("cannot watch Workloads, trying again in %g s: %s", RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)
            version = ""

    async def _fill(self, scope: str | None) -> str:
        """Take in what is listed and forget what is not; the version from which to watch."""
        listed = await self._client.list(_folder(scope), _Listed, {"labelSelector": SELECTOR})
        for body in listed.items or ():
            self._store.handle_event("Workload", False, body)
        present = [msgspec.convert(body["metadata"], Metadata) for body in listed.items or ()]
        self._forget_absent(scope, present, int(listed.metadata.resource_version))
        return listed.metadata.resource_version

    def _forget_absent(self, scope: str | None, present: Iterable[Metadata], version: int) -> None:
        for item in self._store.workloads.absent_from(present, version):
            if scope in (None, item.metadata.namespace):
                self._store.forget("Workload", item.metadata)

    async def _watch(self, scope: str | None, version: str) -> None:
        params = {"watch": "true", "labelSelector": SELECTOR, "resourceVersion": version}
        params["timeoutSeconds"] = str(WATCH_SECONDS)
        rest = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCH_SECONDS + _LATE_SECONDS):
                async for piece in self._client.stream(_folder(scope), params):
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self._handle(line)

    def _handle(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(bounded(line, IN_EVENT), type=_WatchEvent)
        except msgspec.MsgspecError as error:
            raise Undecodable("watch workloads", f"the event cannot be decoded: {error}") from error
        if event.type == "ERROR":
            raise Gone("watch workloads", str(event.object.get("message", "the watch has ended")))
        self._store.handle_event("Workload", event.type == "DELETED", event.object)

    async def _priority(self, name: str) -> int | None:
        try:
            return (await self._client.get(f"{_ROOT}/workloadpriorityclasses/{name}", _PriorityClass)).value
        except NotFound:
            return None

    async def _flavours_of(self, workload: Workload) -> Mapping[str, Flavour]:
        """Read once for each admission."""
        uid, admission = workload.metadata.uid, workload.status.admission
        if uid not in self._flavours and admission is not None:
            names = {name for each in admission.pod_set_assignments for name in each.flavors.values()}
            found = {name: await self._flavour(name) for name in sorted(names)}
            present = {each.metadata.uid for each in self._store.workloads.all()}
            self._flavours = {known: each for known, each in self._flavours.items() if known in present} | {uid: found}
        return self._flavours.get(uid, {})

    async def _flavour(self, name: str) -> Flavour:
        try:
            return (await self._client.get(f"{_ROOT}/resourceflavors/{name}", _ResourceFlavor)).spec
        except NotFound:
            return Flavour()


def _folder(scope: str | None) -> str:
    return RESOURCES["Workload"].folder(scope)
