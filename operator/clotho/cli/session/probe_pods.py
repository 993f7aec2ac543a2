"""Pods that try what only a pod can show: whether images can be pulled and NetworkPolicies are enforced.

They run in the namespace of the runs, because pull secrets are there, and are deleted whatever happens.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Final

from msgspec import Struct

from clotho.cluster.client import Object
from clotho.cluster.outcomes import ApiError, NotFound
from clotho.render.containers import EVERY_CONTAINER, MAIN, POD_SECURITY
from clotho.workspace import findings as found
from clotho.workspace.findings import Finding
from clotho.workspace.objects import Workspace

LIMIT_SECONDS: Final = 180.0  # images of several gigabytes take longer; then they are reported as unknown
POLL_SECONDS: Final = 0.5
LABEL: Final = "clotho.dev/check"
OPEN_PORT, CLOSED_PORT = 8080, 8081
REACHED_NOTHING, REACHED_OPEN, REACHED_BOTH = 3, 0, 4  # exit codes of the client
_SERVE: Final = f"""
import socket, threading, time
def serve(port):
    listener = socket.create_server(("", port))
    while True:
        listener.accept()[0].close()
for port in ({OPEN_PORT}, {CLOSED_PORT}):
    threading.Thread(target=serve, args=(port,), daemon=True).start()
time.sleep({LIMIT_SECONDS})
"""
# A policy takes a moment to arrive at the node: the closed port counts as open when it stays reachable.
_CONNECT: Final = f"""
import socket, sys, time
def reaches(port):
    try:
        socket.create_connection((sys.argv[1], port), timeout=2).close()
    except OSError:
        return False
    return True
def tries(port, wanted):
    return any(reaches(port) == wanted or time.sleep(1) for _ in range(15))
if not tries({OPEN_PORT}, True):
    sys.exit({REACHED_NOTHING})
sys.exit({REACHED_OPEN} if tries({CLOSED_PORT}, False) else {REACHED_BOTH})
"""


class ProbeImages(Struct, frozen=True, kw_only=True):
    """The first one must have Python: it is used to try the network."""

    all: tuple[str, ...]
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


async def probe(workspace: Workspace, images: ProbeImages) -> AsyncIterator[Finding]:
    pods = _ProbePods(workspace, images)
    try:
        for index, image in enumerate(images.all[1:], 1):
            await pods.create(f"pull-{index}", image, "pass")
        await pods.create("server", images.all[0], _SERVE)
        await pods.close_port("server")
        yield await pods.image("server", images.all[0])
        for index, image in enumerate(images.all[1:], 1):
            yield await pods.image(f"pull-{index}", image)
        yield await pods.network(images.all[0])
    except ApiError as error:
        yield Finding(what="probe pods", state="unknown", detail=error.message)
    finally:
        await asyncio.shield(pods.delete_all())


class _ProbePods:
    def __init__(self, workspace: Workspace, images: ProbeImages) -> None:
        self._workspace = workspace
        self._images = images
        self._id = f"clotho-check-{uuid.uuid4().hex[:8]}"
        self._made: list[str] = []

    async def create(self, role: str, image: str, program: str, *arguments: str) -> None:
        await self._make(self._workspace.core("pods"), self._pod(role, image, program, *arguments))

    async def close_port(self, role: str) -> None:
        policies = f"/apis/networking.k8s.io/v1/namespaces/{self._workspace.namespace}/networkpolicies"
        rule = {"ports": [{"port": OPEN_PORT, "protocol": "TCP"}]}
        spec = {"podSelector": {"matchLabels": self._labels(role)}, "policyTypes": ["Ingress"], "ingress": [rule]}
        body = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": self._id},
            "spec": spec,
        }
        await self._make(policies, body)

    async def image(self, role: str, image: str) -> Finding:
        """Waits until the image is pulled or cannot be."""
        pod: Object | None = None
        async for pod in self._watched(role):
            if finding := found.image_finding(image, pod):
                return finding
        return found.late_finding(f"image {image}", pod, LIMIT_SECONDS)

    async def network(self, image: str) -> Finding:
        server = await self._address("server")
        if not server:
            return Finding(what="NetworkPolicies", state="unknown", detail="the pod to connect to did not start")
        await self.create("client", image, _CONNECT, server)
        pod: Object | None = None
        async for pod in self._watched("client"):
            if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
                return found.network_finding(code != REACHED_NOTHING, code == REACHED_BOTH)
        return found.late_finding("NetworkPolicies", pod, LIMIT_SECONDS)

    async def delete_all(self) -> None:
        for path in self._made:
            try:
                await self._workspace.client.delete(path, {"gracePeriodSeconds": 0}, Object)
            except NotFound:
                continue

    async def _address(self, role: str) -> str:
        async for pod in self._watched(role):
            if pod.get("status", {}).get("phase") == "Running" and pod["status"].get("podIP"):
                return str(pod["status"]["podIP"])
            if found.image_finding("", pod) and pod["status"].get("phase") != "Running":
                break
        return ""

    async def _watched(self, role: str) -> AsyncIterator[Object]:
        until = asyncio.get_running_loop().time() + LIMIT_SECONDS
        while asyncio.get_running_loop().time() < until:
            yield await self._workspace.client.get(self._workspace.core(f"pods/{self._id}-{role}"), Object)
            await asyncio.sleep(POLL_SECONDS)

    async def _make(self, folder: str, body: Object) -> None:
        self._made.append(f"{folder}/{body['metadata']['name']}")  # before: an answer may be lost on the way
        await self._workspace.client.create(folder, body, Object)

    def _labels(self, role: str) -> Mapping[str, str]:
        return {LABEL: f"{self._id}-{role}"}

    def _pod(self, role: str, image: str, program: str, *arguments: str) -> Object:
        secrets = [{"name": each} for each in self._images.pull_secrets]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{self._id}-{role}", "labels": self._labels(role)},
            "spec": {
                "restartPolicy": "Never",
                "activeDeadlineSeconds": int(LIMIT_SECONDS),
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": False,
                "securityContext": POD_SECURITY,
                **({"imagePullSecrets": secrets} if secrets else {}),
                "containers": [
                    {
                        "name": MAIN,
                        "image": image,
                        "imagePullPolicy": self._images.pull_policy,
                        "command": ["python", "-c", program, *arguments],
                        "securityContext": EVERY_CONTAINER["securityContext"],
                        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
                    }
                ],
            },
        }
