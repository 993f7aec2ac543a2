"""What all handlers share: the published state, the journal behind it, and the clock work."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from clotho_api_server.state.journal import Journal
from clotho_api_server.state.ledger import Ledger
from clotho_api_server.state.metrics import Metrics
from clotho_api_server.state.presence import Presence
from clotho_api_server.state.schema import open_or_set_aside, open_reader
from clotho_api_server.state.segments import Place, Segments
from clotho_api_server.state.shares import Limits, Snapshot

log = logging.getLogger(__name__)
T = TypeVar("T")
SWEEP_SECONDS = 0.5


class ServiceSettings(Struct, frozen=True):
    limits: Limits
    max_body_bytes: int = 512 * 1024**2
    environment_timeout: float = 300.0
    hold_when_full: float = 30.0  # how long an old client's request is held before it is refused


class Service:
    """Opened once; `state` is what is on disk, replaced as a whole after every commit."""

    def __init__(self, folder: Path, settings: ServiceSettings) -> None:
        self.settings = settings
        self.state = Snapshot()
        self.presence = Presence(settings.environment_timeout, time.monotonic())
        self.closing = False
        self.last_lease: datetime | None = None
        self.latest: bytes | None = None
        self._changed = asyncio.Event()
        connection, self.state_lost = open_or_set_aside(folder)
        if self.state_lost:
            log.error("%s; the trainer registers again and training continues", self.state_lost)
        self._segments = Segments(folder)
        self.metrics = Metrics(lambda: self.state, settings.limits.max_queue_bytes, self._segments.disk)
        ledger = Ledger(connection, self._segments, settings.limits)
        self._journal = Journal(connection, ledger, self._publish, self.metrics.disk_write.observe)
        self._reader = open_reader(folder)
        self._reading = ThreadPoolExecutor(1, "reader")
        self._checking = ThreadPoolExecutor(2, "checker")

    async def start(self) -> None:
        await self._journal.change(lambda ledger: ledger.resume(time.monotonic()))
        newest = await self._places("ORDER BY id DESC LIMIT 1", ())
        self.latest = await self.read(newest[0]) if newest else None
        log.info(
            "serving",
            extra={"step": self.state.step, "groups": self.state.queue_groups, "bytes": self.state.queue_bytes},
        )

    async def close(self) -> None:
        self.begin_closing()
        await self._journal.close()
        self._segments.close()
        self._reading.shutdown()
        self._checking.shutdown()
        self._reader.close()

    def begin_closing(self) -> None:
        """Requests that wait for a batch or for room are answered now."""
        self.closing = True
        self._wake()

    async def change(self, apply: Callable[[Ledger], T], weight: int = 0) -> T:
        return await self._journal.change(apply, weight)

    async def read(self, place: Place) -> bytes | None:
        """One group from the disk; None when it is not there any more."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._segments.read, place)

    async def members(self, batch: int) -> list[Place]:
        """The groups of a batch in arrival order."""
        return await self._places("WHERE batch = ? ORDER BY id", (batch,))

    async def check(self, work: Callable[[], T]) -> T:
        """Work on a large body, away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._checking, work)

    async def until(self, condition: Callable[[Snapshot], bool], seconds: float) -> bool:
        """Whether the condition came true in time; it is evaluated after every change."""
        deadline = time.monotonic() + seconds
        while not condition(self.state):
            left = deadline - time.monotonic()
            if left <= 0 or self.closing:
                return False
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return condition(self.state)
        return True

    async def record_heartbeat(self, env_id: int) -> None:
        """A request of an environment; one that was considered gone is connected again."""
        self.presence.record_heartbeat(env_id, time.monotonic())
        env = self.state.environments.get(env_id)
        if env is not None and not env.connected:
            await self.change(lambda ledger: ledger.set_connected(env_id, True))

    async def sweep(self) -> None:
        """Expires leases and disconnects silent environments, which no request does."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self._sweep_once()
            except Exception as error:  # a full disk, a reset in between: the next round sees to it
                log.warning("failed to expire leases and disconnect silent environments: %s", error)

    async def _sweep_once(self) -> None:
        if self.state.retained_bytes and self._segments.disk.problem:
            log.warning("the volume is full: trained groups that no checkpoint holds yet are deleted")
            await self.change(lambda ledger: ledger.forget_retained())
        if self.state.leased_batches:
            expired = await self.change(lambda ledger: ledger.expire(time.monotonic()))
            self.metrics.lease_expiries.inc(expired)
        for env_id in self.presence.overdue(self.state.environments, time.monotonic()):
            log.warning("environment %s is silent", self.state.environments[env_id].name)
            await self.change(lambda ledger, id=env_id: ledger.set_connected(id, False))  # type: ignore[misc]

    def note_lease(self) -> None:
        self.last_lease = datetime.now(UTC)

    @property
    def problem(self) -> str | None:
        return self._journal.problem

    @property
    def storage_problem(self) -> str | None:
        return self._segments.disk.problem

    async def _places(self, which: str, values: tuple[int, ...]) -> list[Place]:
        def query() -> list[Place]:
            rows = self._reader.execute(f"SELECT segment, offset, bytes FROM groups {which}", values)  # noqa: S608
            return [Place(*row) for row in rows]

        return await asyncio.get_running_loop().run_in_executor(self._reading, query)

    def _publish(self, state: Snapshot) -> None:
        self.state = state
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
