"""Watches that end for good: the process exits and is started again, rather than living on without them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from clotho_dev.cluster.kubectl import Kubectl
from rig.cluster_access import ClusterAccess, eventually
from rig.fake_kubelet import FakeKubelet
from rig.meddling_proxy import MeddlingProxy, refuse
from rig.operator_process import OperatorProcess

StartOperator = Callable[..., Awaitable[OperatorProcess]]
CRDS = Path(__file__).parents[3] / "crds"


async def is_ready(operator: OperatorProcess) -> tuple[bool, object]:
    answer = await operator.get("/readyz")
    return answer[0] == 200, answer


@pytest_asyncio.fixture
async def restore_crds(kubectl: Kubectl, crds: None) -> AsyncIterator[None]:
    yield
    await install_crds(kubectl)


async def install_crds(kubectl: Kubectl) -> None:
    await asyncio.to_thread(kubectl.run, "apply", "--server-side", "--force-conflicts", f"--filename={CRDS}")
    await asyncio.to_thread(kubectl.run, "wait", "--for=condition=Established", "crd", "--all")


async def test_operator_continues_when_crds_are_deleted_and_created_again(
    cluster: ClusterAccess, kubelet: FakeKubelet, kubectl: Kubectl, restore_crds: None, start_operator: StartOperator
) -> None:
    first = await start_operator()
    await cluster.create_run("before")
    await cluster.until_phase("Running", "before")
    await asyncio.to_thread(kubectl.run, "delete", f"--filename={CRDS}", "--wait")
    assert await first.wait() == 1
    assert "background task exited" in first.log()

    second = await start_operator()
    assert (await second.get("/readyz"))[0] == 503, "there is nothing to watch yet"
    await install_crds(kubectl)
    await eventually("ready", lambda: is_ready(second))
    await cluster.create_run("after")
    await cluster.until_phase("Running", "after")


def missing(path: str) -> web.Response | None:
    return refuse(404, "NotFound") if path.endswith("/pods") else None


def failed(path: str) -> web.Response | None:
    if not path.endswith("/trainingruns"):
        return None
    return web.Response(text='{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd is gone"}}\n')


def nonsense(path: str) -> web.Response | None:
    return web.Response(text="<html>\n") if path.endswith("/services") else None


@pytest.mark.parametrize("watching", [missing, failed, nonsense])
async def test_process_exits_when_a_watch_has_died(
    cluster: ClusterAccess,
    proxy: MeddlingProxy,
    start_operator: StartOperator,
    watching: Callable[[str], web.Response | None],
) -> None:
    operator = await start_operator(through=proxy)
    await eventually("ready", lambda: is_ready(operator))
    address = await operator.address()
    async with aiohttp.ClientSession() as prometheus:  # a connection that stays open
        async with prometheus.get(f"{address}/metrics") as answer:
            await answer.read()
        proxy.watching = watching
        proxy.end_watches()
        assert await operator.wait() == 1
    lease = await cluster.get("leases", "clotho-operator")
    assert not lease["spec"].get("holderIdentity"), "another replica can take over at once"


async def test_watches_that_were_interrupted_are_opened_again(
    cluster: ClusterAccess, kubelet: FakeKubelet, proxy: MeddlingProxy, start_operator: StartOperator
) -> None:
    operator = await start_operator(through=proxy)
    await eventually("ready", lambda: is_ready(operator))
    proxy.end_watches()
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    assert operator.is_alive
