"""The operator is killed, disconnected or started twice; tests/faults does so at every write of a run's life."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from rig.cluster_access import Body, ClusterAccess, eventually
from rig.fake_kubelet import FakeKubelet
from rig.meddling_proxy import MeddlingProxy, Write, refuse
from rig.operator_process import OperatorProcess

StartOperator = Callable[..., Awaitable[OperatorProcess]]
Moment = str
MOMENTS = ["before the write", "after the commit"]


def kill_at(proxy: MeddlingProxy, number: int, moment: Moment, victim: OperatorProcess) -> asyncio.Event:
    """SIGKILL at the n-th write: before the server sees it, or after it has committed and before the answer arrives."""
    killed = asyncio.Event()

    async def strike(write: Write) -> None:
        if write.number == number and not killed.is_set():
            killed.set()
            await victim.kill()

    async def strike_and_lose(write: Write) -> web.StreamResponse | None:
        await strike(write)
        return refuse(500, "InternalError") if write.number == number else None

    if moment == "before the write":
        proxy.before = strike_and_lose
    else:
        proxy.after = strike
    return killed


async def was_struck(cluster: ClusterAccess, killed: asyncio.Event, run: str, end: str) -> bool:
    """Statuses are sometimes written together, so that the run may get there with fewer writes than the first one."""

    async def look() -> tuple[bool, Body]:
        body = await cluster.run(run)
        return killed.is_set() or body.get("status", {}).get("phase") == end, body

    await eventually(f"killed or {end}", look)
    return killed.is_set()


def creations(proxy: MeddlingProxy) -> Counter[str]:
    return Counter(write.path for write in proxy.writes if write.method == "POST")


@pytest.mark.parametrize("moment", MOMENTS)
async def test_run_stops_whichever_write_the_operator_is_killed_at(
    cluster: ClusterAccess, kubelet: FakeKubelet, proxy: MeddlingProxy, start_operator: StartOperator, moment: Moment
) -> None:
    operator = await start_operator(through=proxy, CLOTHO_LEASE_ENABLED="false")
    await cluster.create_run("stopped")
    await cluster.until_phase("Running", "stopped")
    proxy.writes.clear()
    await cluster.change_run("stopped", stop=True)
    await cluster.until_phase("Stopped", "stopped")
    for number in range(1, len(proxy.writes) + 1):
        name = f"struck-{number}"
        proxy.before = proxy.after = _leave_alone
        await cluster.create_run(name)
        await cluster.until_phase("Running", name)
        proxy.writes.clear()
        kubelet.ended.clear()
        killed = kill_at(proxy, number, moment, operator)
        await cluster.change_run(name, stop=True)
        if not await was_struck(cluster, killed, name, "Stopped"):
            break
        operator = await start_operator(through=proxy, CLOTHO_LEASE_ENABLED="false")
        await cluster.until_phase("Stopped", name)
        await cluster.until_pods("gone", lambda pods: not pods, name)
        assert kubelet.ended == ["environment", "trainer", "api-server"], f"killed {moment} of write {number}"


async def _leave_alone(_: Write) -> None:
    return None


async def test_writes_without_an_answer_create_no_duplicates(
    cluster: ClusterAccess, kubelet: FakeKubelet, proxy: MeddlingProxy, start_operator: StartOperator
) -> None:
    """Every first write is committed, but its answer never arrives in time: nothing is made twice."""
    lost: set[str] = set()

    async def delay_answer(write: Write) -> None:
        if write.path not in lost:
            lost.add(write.path)
            await asyncio.sleep(2.5)  # longer than the operator waits

    proxy.after = delay_answer
    await start_operator(through=proxy)
    await cluster.create_run("a")
    run = await cluster.until_phase("Running", "a", limit_seconds=60)
    assert run["status"]["attempt"] == 1
    assert run["status"].get("restarts", 0) == 0
    assert kubelet.trainers_seen_together == 1


async def test_a_frozen_watch_causes_no_duplicates(
    cluster: ClusterAccess, kubelet: FakeKubelet, proxy: MeddlingProxy, start_operator: StartOperator
) -> None:
    """While watches deliver nothing, the operator still knows what it has made itself, and makes nothing twice."""
    operator = await start_operator(through=proxy)
    await eventually("leading", lambda: _leads(operator))
    await cluster.create_run("w")
    # Before an attempt is recorded, a new spec replaces all pods.
    await cluster.until("started", lambda run: run.get("status", {}).get("attempt") == 1, "w")
    proxy.flowing.clear()
    await cluster.change_run("w", environments=[{"name": "letters", "replicas": 2, "config": {"group_size": 4}}])
    await asyncio.sleep(1.0)
    proxy.flowing.set()
    await cluster.until_phase("Running", "w")
    await cluster.until_pods("four", lambda pods: len(pods) == 4, "w")
    assert max(creations(proxy).values()) <= 4, [write.what for write in proxy.writes]
    assert kubelet.trainers_seen_together == 1


async def _leads(operator: OperatorProcess) -> tuple[bool, float]:
    value = await operator.metric("clotho_leader")
    return value == 1, value


async def test_only_one_of_two_operators_works(
    cluster: ClusterAccess, kubelet: FakeKubelet, proxy: MeddlingProxy, start_operator: StartOperator
) -> None:
    first = await start_operator(through=proxy)
    await eventually("leading", lambda: _leads(first))
    second = await start_operator(through=proxy)
    await second.address()
    await cluster.create_run("one")
    await cluster.until_phase("Running", "one")
    assert max(creations(proxy).values()) == 3, "three pods, each created once"
    assert await second.metric("clotho_leader") == 0
    assert await first.terminate() == 0, "an orderly end"
    await eventually("leading", lambda: _leads(second))
    await cluster.create_run("two")
    await cluster.until_phase("Running", "two")


async def test_the_second_operator_takes_over_from_a_killed_one(
    cluster: ClusterAccess, kubelet: FakeKubelet, start_operator: StartOperator
) -> None:
    first = await start_operator()
    await eventually("leading", lambda: _leads(first))
    second = await start_operator()
    await first.kill()
    await cluster.create_run("k")
    await cluster.until_phase("Running", "k")
    assert await second.metric("clotho_leader") == 1


async def test_frozen_leader_does_not_write_when_it_resumes(
    cluster: ClusterAccess, kubelet: FakeKubelet, proxy: MeddlingProxy, start_operator: StartOperator
) -> None:
    frozen = await start_operator(through=proxy)
    await eventually("leading", lambda: _leads(frozen))
    frozen.freeze()
    second = await start_operator()
    await eventually("leading", lambda: _leads(second))
    await cluster.create_run("t")
    await cluster.until_phase("Running", "t")
    written = len(proxy.writes)
    frozen.thaw()
    await eventually("standing by", lambda: _stands_by(frozen))
    assert len(proxy.writes) == written, [write.what for write in proxy.writes[written:]]


async def _stands_by(operator: OperatorProcess) -> tuple[bool, float]:
    value = await operator.metric("clotho_leader")
    return value == 0, value
