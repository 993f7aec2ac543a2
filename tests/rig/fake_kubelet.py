"""A pretended kubelet: binds pods to a node of its own, lets them run, answers their probes and ends them on demand."""

import asyncio
import contextlib
import itertools
import os
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from clotho.cluster.outcomes import ApiError, Transient
from clotho_dev.cluster.pki import Identity
from clotho_dev.ports import free_port
from rig.cluster_access import Body, ClusterAccess, component

_NETWORK = 64 + os.getpid() % 128  # two test sessions at once do not meet
_addresses = itertools.count(2 + os.getpid() // 128 % 250 * 250)
PORTS = (8000, 8001, 8002, 8003)


class FakeKubelet:
    """Pods become ready at once unless `makes_ready` is false, and answer with `progress` and `queue`.

    `may_bind(pod)`: whether there is a node for it. `may_finish(pod)`: whether a pod that is being deleted may end now.
    """

    def __init__(self, cluster: ClusterAccess, pause_seconds: float = 0.06) -> None:
        self._cluster, self._pause_seconds = cluster, pause_seconds
        self._node = f"fake-{cluster.namespace}"
        self.binds = True
        self.makes_ready = True
        self.may_bind: Callable[[Body], bool] = lambda _: True
        self.may_finish: Callable[[Body], bool] = lambda _: True
        self.progress: Body = {"state": "training", "step": 1, "totalSteps": 100, "registered": True, "serving": True}
        self.queue: Body = {"current_step": 1, "queue_size": 0, "environments": [{"name": "letters"}]}
        self.description: Body = {"name": "letters", "className": "Letters", "fields": []}
        self.history: Body | None = {}  # None is no answer that can be read
        self.logs: dict[str, str] = {}  # by component; served after `serve_logs`
        self.has_logs = True  # else it answers that something went wrong
        self.silent: set[int] = set()  # ports that refuse to answer
        self.ended: list[str] = []  # components, in the order in which they ended after a deletion
        self.trainers_seen_together = 0
        self._servers: dict[str, web.AppRunner] = {}
        self._known: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "FakeKubelet":
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._node}, "spec": {"unschedulable": True}}
        await self._cluster.client.create("/api/v1/nodes", node, Body)
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        (outcome,) = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError), f"the pretended kubelet died: {outcome!r}"
        for pod in await self._cluster.all("pods"):
            with contextlib.suppress(ApiError):
                await self._cluster.delete("pods", pod["metadata"]["name"], gracePeriodSeconds=0)
        for server in self._servers.values():
            await server.cleanup()
        await self._cluster.client.delete(f"/api/v1/nodes/{self._node}", {}, Body)

    async def _work(self) -> None:
        while True:
            with contextlib.suppress(Transient):  # an API server without CPU time answers later
                await self._tend_all()
            await asyncio.sleep(self._pause_seconds)

    async def _tend_all(self) -> None:
        pods = await self._cluster.all("pods")
        alive = [p for p in pods if component(p) == "trainer" and p["status"].get("phase") in ("Pending", "Running")]
        self.trainers_seen_together = max(self.trainers_seen_together, len(alive))
        for pod in pods:
            with contextlib.suppress(ApiError):  # the operator was faster; look again
                await self._tend(pod)

    async def _tend(self, pod: Body) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if pod["metadata"].get("deletionTimestamp"):
            if self.may_finish(pod):
                self.ended.append(component(pod))
                await self._cluster.delete("pods", name, gracePeriodSeconds=0, preconditions={"uid": uid})
        elif not pod["spec"].get("nodeName"):
            if self.binds and self.may_bind(pod):
                await self._bind(name)
        elif self.makes_ready and pod["status"].get("phase") == "Pending":
            if uid not in self._known:
                number = next(_addresses)
                self._known[uid] = f"127.{_NETWORK}.{number // 250 % 250}.{number % 250 + 1}"
                await self._serve(self._known[uid])
            await self.set_status(pod, running(pod, self._known[uid], is_ready=True))

    async def _bind(self, name: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": self._node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self._cluster.client.create(f"{self._cluster.folder('pods')}/{name}/binding", body, Body)

    async def set_status(self, pod: Body, status: Body) -> None:
        """Of this very pod: its successor has the same name."""
        change = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._cluster.patch("pods", pod["metadata"]["name"], change, "/status")

    async def fail(self, pod: Body, *, exit_code: int = 1, reason: str = "Error", message: str = "") -> None:
        """The main container ends, and with it the pod."""
        ended = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": "2026-01-01T00:00:00Z"}
        await self.set_status(
            pod,
            {
                "phase": "Succeeded" if exit_code == 0 else "Failed",
                "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [container("main", {"terminated": ended}, is_ready=False)],
            },
        )

    async def _serve(self, address: str) -> None:
        app = web.Application()
        app.router.add_get("/progress", self._answer(8002, lambda: self.progress))
        app.router.add_get("/history", self._answer(8002, lambda: self.history))
        app.router.add_put("/steps", self._set_steps)
        app.router.add_get("/status", self._answer(8000, lambda: self.queue))
        app.router.add_get("/health", self._answer(8001, lambda: {}))
        app.router.add_get("/description", self._answer(8003, lambda: self.description))
        server = web.AppRunner(app, access_log=None)
        await server.setup()
        for port in PORTS:
            await web.TCPSite(server, address, port, reuse_port=True).start()
        self._servers[address] = server

    async def serve_logs(self, identity: Identity) -> None:
        """The API server fetches them from the node's own port."""
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(identity.certificate, identity.key)
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._log)
        server = web.AppRunner(app, access_log=None)
        await server.setup()
        port = free_port()
        await web.TCPSite(server, "127.0.0.1", port, ssl_context=tls).start()
        self._servers["logs"] = server
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        path = f"/api/v1/nodes/{self._node}/status"
        await self._cluster.client.patch(path, {"status": status}, Body, "application/merge-patch+json")

    async def _log(self, request: web.Request) -> web.Response:
        if not self.has_logs:
            raise web.HTTPInternalServerError
        pod = await self._cluster.get("pods", request.match_info["pod"])
        return web.Response(text=self.logs.get(component(pod), ""))

    async def _set_steps(self, request: web.Request) -> web.Response:
        if "Bearer " not in request.headers.get("Authorization", ""):
            raise web.HTTPUnauthorized
        self.progress = self.progress | {"configuredSteps": (await request.json())["steps"]}
        return web.json_response({})

    def _answer(self, port: int, body: Callable[[], Body | None]) -> Any:
        async def handle(_: web.Request) -> web.Response:
            if port in self.silent:
                raise web.HTTPServiceUnavailable
            return web.Response(body=msgspec.json.encode(body()), content_type="application/json")

        return handle


def running(pod: Body, address: str, *, is_ready: bool) -> Body:
    names = [c["name"] for c in pod["spec"]["containers"]]
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": str(is_ready)},
        ],
        "containerStatuses": [
            container(name, {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, is_ready=is_ready) for name in names
        ],
    }


def container(name: str, state: Body, *, is_ready: bool = False) -> Body:
    return {
        "name": name,
        "image": "pretended",
        "imageID": "",
        "ready": is_ready,
        "restartCount": 0,
        "state": state,
    }
