"""Where cases run: a namespace, a proxy, an operator and a pretended kubelet for each, on one API server for all."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from clotho.cluster.kubeconfig import from_kubeconfig
from clotho.cluster.outcomes import ApiError, NotFound
from clotho_dev.cluster.control_plane import ControlPlane
from faults.forked_operators import ForkedOperator, ForkedOperators
from faults.life import RUN
from faults.proxy import FaultProxy
from rig.cluster_access import Body, ClusterAccess, eventually
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import FAST

SETTINGS = {
    **FAST,
    "CLOTHO_LEASE_ENABLED": "false",
    "CLOTHO_LEASE_DURATION_SECONDS": "10",  # longer than a request may take
    "CLOTHO_API_TIMEOUT_SECONDS": "5",  # many cases share two cores
    "CLOTHO_PROBE_INTERVAL_SECONDS": "0.6",
    "CLOTHO_SERVER_HOST": "127.0.0.1",
    "CLOTHO_SERVER_PORT": "0",
    "CLOTHO_LOG_LEVEL": "info",
}
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
KUBELET_PAUSE_SECONDS = 0.15
_numbers = itertools.count(1)


class Bench:
    """One case's place: everything that a fault can reach."""

    def __init__(self, lab: Lab, cluster: ClusterAccess, kubelet: FakeKubelet, proxy: FaultProxy, log: Path) -> None:
        self.cluster, self.kubelet, self.proxy = cluster, kubelet, proxy
        self._lab, self._log = lab, log
        self._operator: ForkedOperator | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_deleted = False

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def start(self) -> None:
        scope = {"CLOTHO_WATCH_NAMESPACES": self.cluster.namespace, "CLOTHO_API_KUBECONFIG": str(self.proxy.kubeconfig)}
        self._operator = await self._lab.operators.start({**SETTINGS, **scope}, self._log)

    async def kill(self) -> None:
        assert self._operator is not None
        await self._operator.kill()
        await self.start()

    async def freeze(self, seconds: float) -> None:
        assert self._operator is not None
        self._operator.send(signal.SIGSTOP)
        self.later(seconds, "thaw")

    async def delete_run(self) -> None:
        self.is_deleted = True
        await self.cluster.delete("trainingruns", RUN)

    async def delete_namespace(self) -> None:
        self.is_deleted = True
        await self.cluster.client.delete(f"/api/v1/namespaces/{self.cluster.namespace}", {}, Body)

    def later(self, seconds: float, what: str) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            if what == "release":
                self.proxy.release()
            elif self._operator is not None:
                self._operator.send(signal.SIGCONT)

        task = asyncio.create_task(wait())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._operator is not None:
            await self._operator.kill()

    @property
    def problem(self) -> str:
        """Why there is no operator any more; empty while there is one."""
        if self._operator is not None and self._operator.is_alive:
            return ""
        return f"the operator's process has ended: {self.log[-500:]}"


class Lab:
    """Used as an async context manager; the proxies share connections to the API server."""

    def __init__(self, control_plane: ControlPlane, operators: ForkedOperators, folder: Path) -> None:
        self._control_plane, self.operators, self._folder = control_plane, operators, folder

    async def __aenter__(self) -> Lab:
        tls = from_kubeconfig(self._control_plane.kubeconfig).tls
        connector = aiohttp.TCPConnector(ssl=tls or False, limit=0, keepalive_timeout=60)
        self._upstream = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._upstream.close()

    @asynccontextmanager
    async def bench(self) -> AsyncIterator[Bench]:
        namespace = f"fault-{next(_numbers)}"
        folder = self._folder / namespace
        folder.mkdir()
        kubeconfig = self._control_plane.kubeconfig
        async with (
            ClusterAccess(kubeconfig, namespace) as cluster,
            FaultProxy(kubeconfig, folder, self._upstream) as proxy,
        ):
            await _create_namespace(cluster)
            try:
                async with FakeKubelet(cluster, KUBELET_PAUSE_SECONDS) as kubelet:
                    bench = Bench(self, cluster, kubelet, proxy, folder / "operator.log")
                    try:
                        await bench.start()
                        yield bench
                    finally:
                        await bench.end()
            finally:
                await _delete_namespace(cluster)


async def _create_namespace(cluster: ClusterAccess) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": cluster.namespace, "labels": RESTRICTED},
    }
    await cluster.client.create("/api/v1/namespaces", body, Body)

    async def has_account() -> tuple[bool, str]:
        try:
            await cluster.get("serviceaccounts", "default")
        except NotFound:
            return False, "no default service account"
        return True, ""

    await eventually("a namespace with its service account", has_account)


async def _delete_namespace(cluster: ClusterAccess) -> None:
    try:
        await cluster.client.delete(f"/api/v1/namespaces/{cluster.namespace}", {}, Body)
    except ApiError:
        return  # a case deleted it already
