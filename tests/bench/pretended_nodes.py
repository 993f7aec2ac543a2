"""A control plane whose nodes and pods KWOK pretends to run, for the operator's benchmarks."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("operator", "images/contract", "dev", "tests")]

import aiohttp  # noqa: E402
import msgspec  # noqa: E402
from aiohttp import web  # noqa: E402

from clotho.cluster.kubeconfig import from_kubeconfig  # noqa: E402
from clotho.cluster.outcomes import Conflict, NotFound  # noqa: E402
from clotho_dev.cluster import binaries  # noqa: E402
from clotho_dev.cluster.control_plane import PROGRAMS, ControlPlane  # noqa: E402
from clotho_dev.cluster.pki import Identity  # noqa: E402
from clotho_dev.cluster.process import Component  # noqa: E402
from rig.cluster_access import ClusterAccess  # noqa: E402

NAMESPACE = "bench"
NODES = 50


class BenchControlPlane(ControlPlane):
    """Without the endpoint controllers: they refuse KWOK's loopback addresses, and would try again for ever."""

    def _controller_manager(self, service_accounts: Identity) -> Component:
        component = super()._controller_manager(service_accounts)
        off = ("endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller")
        return replace(component, argv=[*component.argv, "--controllers=*," + ",".join(f"-{name}" for name in off)])


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    uid: str
    labels: dict[str, str] = {}
    deletion_timestamp: str = ""


class Status(msgspec.Struct, frozen=True):
    phase: str = ""


class WatchedObject(msgspec.Struct, frozen=True):
    metadata: Meta
    status: Status = Status()


class WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: WatchedObject


async def watch(
    cluster: ClusterAccess, kubeconfig: Path, plural: str, handle: Callable[[WatchEvent, float], None]
) -> None:
    who = from_kubeconfig(kubeconfig)
    connector = aiohttp.TCPConnector(ssl=who.tls or False)
    url = f"{who.server}{cluster.folder(plural)}?watch=true&resourceVersion=0"
    decoder = msgspec.json.Decoder(WatchEvent)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=2**24, timeout=timeout) as http:
        while True:
            async with http.get(url) as answer:
                if answer.status == 200:
                    async for line in answer.content:
                        handle(decoder.decode(line), time.monotonic())
            await asyncio.sleep(0.2)  # a CRD that was created just now is not served yet


async def end_deleted_pods(access: ClusterAccess, kubeconfig: Path) -> None:
    """As a kubelet does. KWOK deletes by name alone, and where it is late it ends the successor of that name."""

    async def end(pod: Meta) -> None:
        with contextlib.suppress(NotFound, Conflict):
            await access.delete("pods", pod.name, gracePeriodSeconds=0, preconditions={"uid": pod.uid})

    async with asyncio.TaskGroup() as ends:

        def handle(event: WatchEvent, _: float) -> None:
            if event.type != "DELETED" and event.object.metadata.deletion_timestamp:
                ends.create_task(end(event.object.metadata))

        await watch(access, kubeconfig, "pods", handle)


async def serve_pods() -> web.AppRunner:
    """KWOK's pods have addresses in 127.0.0.0/8 and no process behind them: one small server answers for all."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    progress = {"state": "training", "step": 5, "totalSteps": 100, "registered": True, "serving": True}
    progress["lastStepTime"] = started

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(progress | {"current_step": 5, "queue_size": 0})

    app = web.Application()
    for path in ("/progress", "/status", "/health"):
        app.router.add_get(path, answer)
    server = web.AppRunner(app, access_log=None)
    await server.setup()
    for port in (8000, 8001, 8002):
        await web.TCPSite(server, "0.0.0.0", port, reuse_port=True).start()  # tests beside it have these ports
    return server


def node_manifest(number: int) -> dict[str, Any]:
    name = f"kwok-{number}"
    room = {"cpu": "1000", "memory": "4Ti", "pods": "1000", "ephemeral-storage": "4Ti", "nvidia.com/gpu": "1000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "type": "kwok"},
        },
        "status": {"allocatable": room, "capacity": room},
    }


@asynccontextmanager
async def cluster_with_nodes(folder: Path) -> AsyncIterator[tuple[ControlPlane, ClusterAccess]]:
    programs = binaries.find([*PROGRAMS, "kwok"])
    with BenchControlPlane(folder, programs) as plane:
        async with ClusterAccess(plane.kubeconfig, NAMESPACE) as access:
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
            await access.client.create("/api/v1/namespaces", space, dict[str, Any])
            for number in range(NODES):
                await access.client.create("/api/v1/nodes", node_manifest(number), dict[str, Any])
            kubectl = [str(programs["kubectl"]), f"--kubeconfig={plane.kubeconfig}"]
            subprocess.run([*kubectl, "apply", "-f", str(ROOT / "crds")], check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221
            subprocess.run([*kubectl, "wait", "--for=condition=Established", "crd", "--all"], check=True)  # noqa: ASYNC221
            stages = ROOT / "tests" / "rig" / "kwok-stages.yaml"
            flags = [f"--config={stages}", "--manage-all-nodes=true", "--node-lease-duration-seconds=40"]
            flags += ["--cidr=127.64.0.0/10", "--node-ip=127.0.0.1"]
            with (folder / "kwok.log").open("wb") as log:
                kwok = await asyncio.create_subprocess_exec(
                    str(programs["kwok"]), f"--kubeconfig={plane.kubeconfig}", *flags, stdout=log, stderr=log
                )
            try:
                await until_nodes_are_ready(access)
                yield plane, access
            finally:
                kwok.terminate()
                await kwok.wait()


async def until_nodes_are_ready(access: ClusterAccess) -> None:
    async with asyncio.timeout(120):
        while True:
            nodes = (await access.client.list("/api/v1/nodes", dict[str, Any], {}))["items"]
            if all(not node["spec"].get("taints") for node in nodes):
                return
            await asyncio.sleep(0.5)
