"""A leader stops writing before another replica may take over: the margin covers a write that is still on its way."""

import asyncio

import pytest

from clotho.cluster.lease import LeaderElection, Lease, LeaseMetadata, LeaseTimes
from clotho.cluster.outcomes import NotFound, Transient

TIMES = LeaseTimes(duration=30.0, renew_within=20.0, renew_every=5.0, ask_every=2.0)
START = 1000.0


class Outage(Exception):  # noqa: N818 - ends the test
    pass


class Rehearsal:
    """The API server's Lease and the replica's clock in one: the server answers once, after `latency`, and never again.

    Pauses only move the clock.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, latency: float = 0.0) -> None:
        self.now, self._latency = START, latency
        self._is_reachable = True
        self.changes: list[tuple[float, bool]] = []
        self.election = LeaderElection(
            self,  # type: ignore[arg-type]
            namespace="ns",
            name="l",
            identity="a",
            times=TIMES,
            clock=lambda: self.now,
        )
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self._is_reachable = False
        self.now += seconds
        if self.now > START + 3 * TIMES.duration:
            raise Outage

    async def get(self, *_: object) -> Lease:
        if not self._is_reachable:
            raise Transient("get", "no route to host")
        raise NotFound("get", "not found", 404)

    async def create(self, _: str, lease: Lease, *__: object) -> Lease:
        self.now += self._latency
        return Lease(metadata=LeaseMetadata(name="l", namespace="ns", resource_version="1"), spec=lease.spec)

    async def replace(self, *_: object) -> Lease:
        raise Transient("replace", "no route to host")

    async def run(self) -> None:
        with pytest.raises(Outage):
            await self.election.run(lambda leading: self.changes.append((self.now - START, leading)))


async def test_leader_that_cannot_renew_stops_before_the_lease_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(monkeypatch)
    await rehearsal.run()
    assert rehearsal.changes == [(0.0, True), (TIMES.renew_within, False)]


async def test_lease_counts_from_the_request_and_not_from_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other replicas count from the moment when the server stored it, which lies in between."""
    rehearsal = Rehearsal(monkeypatch, latency=4.0)
    await rehearsal.run()
    assert rehearsal.changes == [(4.0, True), (TIMES.renew_within, False)]


async def test_a_leader_that_was_frozen_beyond_its_lease_and_renews_it_leads_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Writes refused during the lapse have to be planned again, although no other replica has led."""
    rehearsal = Rehearsal(monkeypatch)
    pauses = iter([TIMES.renew_every, TIMES.renew_within + 1])

    async def sleep(_: float) -> None:
        rehearsal.now += next(pauses, 3 * TIMES.duration)
        if rehearsal.now > START + 3 * TIMES.duration:
            raise Outage

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await rehearsal.run()
    thaw = TIMES.renew_every + TIMES.renew_within + 1
    assert rehearsal.changes[:3] == [(0.0, True), (thaw, False), (thaw, True)]


class SlowServer:
    """Stores a Lease at once and answers when `answers` is set."""

    def __init__(self) -> None:
        self.stored: Lease | None = None
        self.has_stored, self.answers = asyncio.Event(), asyncio.Event()

    async def get(self, *_: object) -> Lease:
        raise NotFound("get", "not found", 404)

    async def create(self, _: str, lease: Lease, *__: object) -> Lease:
        self.stored = Lease(metadata=LeaseMetadata(name="l", namespace="ns", resource_version="1"), spec=lease.spec)
        self.has_stored.set()
        await self.answers.wait()
        return self.stored

    async def replace(self, _: str, lease: Lease, *__: object) -> Lease:
        self.stored = lease
        return lease


async def test_a_lease_whose_acquisition_is_interrupted_is_released() -> None:
    server = SlowServer()
    election = LeaderElection(server, namespace="ns", name="l", identity="a", times=TIMES)  # type: ignore[arg-type]
    running = asyncio.ensure_future(election.run(lambda _: None))
    await server.has_stored.wait()
    running.cancel()
    await asyncio.sleep(0)
    server.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert server.stored is not None
    assert server.stored.spec.holder_identity is None
