"""What Kueue has decided about runs. Its Workloads are watched from the first run on that asks for them.

Kueue may be installed or removed at any time, so its kinds are not among those that are watched from the start.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from clotho.api.names import KUEUE_GROUP, KUEUE_VERSION, PRIORITY_LABEL, QUEUE_LABEL
from clotho.api.training_run import TrainingRun
from clotho.cluster.cache import Key
from clotho.cluster.client import ApiClient
from clotho.cluster.outcomes import ApiError, Forbidden, NotFound
from clotho.cluster.reflector import Reflector
from clotho.cluster.store import AnyRun, Store
from clotho.plan.workloads import Flavour, KueueSeen, Workload

log = logging.getLogger(__name__)
RETRY_SECONDS: Final = 5.0
_ROOT: Final = f"/apis/{KUEUE_GROUP}/{KUEUE_VERSION}"


class _PriorityClass(Struct, frozen=True):
    value: int = 0


class _ResourceFlavor(Struct, frozen=True):
    spec: Flavour = Flavour()


class Kueue:
    """`namespaces` empty means the whole cluster."""

    def __init__(self, client: ApiClient, store: Store, namespaces: tuple[str, ...]) -> None:
        self._client, self._store = client, store
        self._reflectors = [Reflector(client, store, "Workload", scope) for scope in namespaces or (None,)]
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
            await asyncio.gather(*map(self._follow, self._reflectors))
            self._is_watching.clear()

    async def _start(self) -> None:
        """All Workloads are known before the first decision: a run without one has no pods."""
        async with self._starting:
            if not self._is_watching.is_set():
                for reflector in self._reflectors:
                    await reflector.fill()
                self._is_watching.set()

    async def _follow(self, reflector: Reflector) -> None:
        """Until Kueue is removed."""
        while True:
            try:
                if not reflector.is_filled:
                    await reflector.fill()
                await reflector.follow()
            except NotFound:
                log.warning("Kueue was removed from the cluster")
                reflector.clear()
                return
            except ApiError as error:
                log.warning("cannot watch Workloads, trying again in %g s: %s", RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)

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
