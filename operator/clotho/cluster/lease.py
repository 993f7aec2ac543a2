"""Leader election with a coordination.k8s.io Lease: one replica writes, and it stops before another may start."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime

from msgspec import UNSET, Struct, UnsetType

from clotho.cluster.client import ApiClient
from clotho.cluster.outcomes import ApiError, Conflict, NotFound

log = logging.getLogger(__name__)


class LeaseTimes(Struct, frozen=True, kw_only=True):
    """A holder that could not renew for `renew_within` stops writing; others take over after `duration` of silence.

    The difference between the two must cover a write that is still on its way.
    """

    duration: float = 30.0
    renew_within: float = 20.0
    renew_every: float = 5.0
    ask_every: float = 2.0


class LeaseSpec(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseMetadata(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    name: str
    namespace: str
    resource_version: str | UnsetType = UNSET


class Lease(Struct, frozen=True, kw_only=True, rename="camel"):
    metadata: LeaseMetadata
    spec: LeaseSpec
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


def may_take(record: LeaseSpec, identity: str, unchanged_for: float) -> bool:
    """Ours, released, or silent for the time its holder promised to renew within.

    Silence is measured by our own clock since we last saw the record change: clocks of two nodes are never compared.
    """
    if not record.holder_identity or record.holder_identity == identity:
        return True
    return unchanged_for >= (record.lease_duration_seconds or 0)


def next_record(record: LeaseSpec | None, identity: str, times: LeaseTimes, wall: datetime) -> LeaseSpec:
    stamp = wall.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    same = record is not None and record.holder_identity == identity
    transitions = (record.lease_transitions or 0) if record else 0
    return LeaseSpec(
        holder_identity=identity,
        lease_duration_seconds=int(times.duration),
        acquire_time=record.acquire_time if record and same else stamp,
        renew_time=stamp,
        lease_transitions=transitions if same or record is None else transitions + 1,
    )


class LeaderElection:
    """`is_leader` depends on the clock alone, so that a process that was frozen does not lead when it continues."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._times, self._clock = client, times, clock
        self._namespace, self._name, self.identity = namespace, name, identity
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._held_until = 0.0
        self._seen: Lease | None = None
        self._seen_at = 0.0

    def is_leader(self) -> bool:
        return self._clock() < self._held_until

    async def run(self, on_change: Callable[[bool], None]) -> None:
        """Acquire, renew and call `on_change` until cancelled; then release the lease."""
        leading = False
        try:
            while True:
                started = self._clock()
                has_renewed = await _to_its_end(self._try())
                if leading and not self.is_leader():  # also for a moment: writes were refused, and are planned again
                    leading = False
                    on_change(leading)
                if has_renewed:
                    self._held_until = started + self._times.renew_within
                if leading != self.is_leader():
                    leading = self.is_leader()
                    on_change(leading)
                await asyncio.sleep(self._pause(leading))
        finally:
            if leading:
                on_change(False)
            await asyncio.shield(self._release())

    def _pause(self, leading: bool) -> float:
        if not leading:
            return self._times.ask_every * random.uniform(0.8, 1.2)  # noqa: S311 - spreads replicas, no secret
        return max(0.05, min(self._times.renew_every, self._held_until - self._clock()))

    async def _try(self) -> bool:
        try:
            async with asyncio.timeout(self._times.renew_every):
                return await self._acquire_or_renew()
        except Conflict:  # another replica was faster
            return False
        except (ApiError, TimeoutError) as error:
            log.warning("cannot reach the lease %s/%s: %s", self._namespace, self._name, error)
            return False

    async def _acquire_or_renew(self) -> bool:
        known = await self._read()
        if known is not None and not may_take(known.spec, self.identity, self._clock() - self._seen_at):
            return False
        wanted = next_record(known.spec if known else None, self.identity, self._times, datetime.now(UTC))
        await self._write(known, wanted)
        return True

    async def _read(self) -> Lease | None:
        try:
            lease = await self._client.get(f"{self._folder}/{self._name}", Lease)
        except NotFound:
            self._seen = None
            return None
        if self._seen is None or lease.metadata.resource_version != self._seen.metadata.resource_version:
            self._seen, self._seen_at = lease, self._clock()
        return lease

    async def _write(self, known: Lease | None, spec: LeaseSpec) -> None:
        if known is None:
            lease = Lease(metadata=LeaseMetadata(name=self._name, namespace=self._namespace), spec=spec)
            self._seen = await self._client.create(self._folder, lease, Lease)
        else:
            lease = Lease(metadata=known.metadata, spec=spec)  # the resource version makes this a compare-and-swap
            self._seen = await self._client.replace(f"{self._folder}/{self._name}", lease, Lease)
        self._seen_at = self._clock()

    async def _release(self) -> None:
        """Let the next replica start at once. Called when nothing writes any more."""
        self._held_until = 0.0
        if self._seen is None or self._seen.spec.holder_identity != self.identity:
            return
        spec = LeaseSpec(lease_duration_seconds=1, lease_transitions=self._seen.spec.lease_transitions)
        try:
            async with asyncio.timeout(self._times.renew_every):
                await self._client.replace(
                    f"{self._folder}/{self._name}", Lease(metadata=self._seen.metadata, spec=spec), Lease
                )
        except (ApiError, TimeoutError) as error:
            log.warning("failed to release the lease (it expires by itself): %s", error)


async def _to_its_end(work: Coroutine[None, None, bool]) -> bool:
    """Also when cancelled meanwhile: a write that was sent decides whether there is a lease to release."""
    attempt = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(attempt)
    except asyncio.CancelledError:
        await attempt
        raise
