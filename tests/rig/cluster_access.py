"""The tests' own hand in the cluster: create, read, wait; with the operator's client, as the administrator."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from clotho.cluster.client import ApiClient
from clotho.cluster.kubeconfig import from_kubeconfig
from clotho.cluster.outcomes import Invalid, NotFound

Body = dict[str, Any]
RUNS = "/apis/clotho.dev/v1alpha1"
LIMIT_SECONDS = 60.0  # several tests share the machine


class ClusterAccess:
    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.client = ApiClient(from_kubeconfig(kubeconfig))
        self.namespace = namespace

    async def __aenter__(self) -> "ClusterAccess":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.__aexit__()

    def folder(self, plural: str) -> str:
        root = {
            **dict.fromkeys(("trainingruns", "environments", "inferencetests", "trainingpolicies"), RUNS),
            "networkpolicies": "/apis/networking.k8s.io/v1",
            "poddisruptionbudgets": "/apis/policy/v1",
            "leases": "/apis/coordination.k8s.io/v1",
            "workloads": "/apis/kueue.x-k8s.io/v1beta2",
        }.get(plural, "/api/v1")
        return f"{root}/namespaces/{self.namespace}/{plural}"

    async def create_run(self, name: str, **spec: Any) -> Body:
        return await self.client.create(self.folder("trainingruns"), run_manifest(name, **spec), Body)

    async def run(self, name: str) -> Body:
        return await self.get("trainingruns", name)

    async def get(self, plural: str, name: str) -> Body:
        return await self.client.get(f"{self.folder(plural)}/{name}", Body)

    async def all(self, plural: str) -> list[Body]:
        return (await self.client.list(self.folder(plural), Body, {})).get("items") or []

    async def delete(self, plural: str, name: str, **options: Any) -> None:
        await self.client.delete(f"{self.folder(plural)}/{name}", options, Body)

    async def patch(self, plural: str, name: str, change: Body, subresource: str = "") -> Body:
        path = f"{self.folder(plural)}/{name}{subresource}"
        return await self.client.patch(path, change, Body, "application/merge-patch+json")

    async def change_run(self, name: str, **spec: Any) -> Body:
        return await self.patch("trainingruns", name, {"spec": spec})

    async def until(
        self, what: str, check: Callable[[Body], bool], run: str, limit_seconds: float = LIMIT_SECONDS
    ) -> Body:
        """The run once it is as wished; the last state is in the failure."""

        async def look() -> tuple[bool, Body]:
            body = await self.run(run)
            return check(body), body

        return await eventually(f"{run} {what}", look, limit_seconds)

    async def until_phase(self, phase: str, run: str, limit_seconds: float = LIMIT_SECONDS) -> Body:
        return await self.until(phase, lambda body: body.get("status", {}).get("phase") == phase, run, limit_seconds)

    async def until_gone(self, plural: str, name: str) -> None:
        async def look() -> tuple[bool, str]:
            try:
                await self.get(plural, name)
            except NotFound:
                return True, ""
            return False, "still there"

        await eventually(f"{plural}/{name} gone", look)

    async def pods(self, run: str) -> list[Body]:
        return await self.of_run("pods", run)

    async def of_run(self, plural: str, run: str) -> list[Body]:
        return [o for o in await self.all(plural) if o["metadata"].get("labels", {}).get("clotho.dev/run") == run]

    async def until_pods(self, what: str, check: Callable[[list[Body]], bool], run: str) -> list[Body]:
        return await self.until_objects("pods", what, check, run)

    async def until_objects(self, plural: str, what: str, check: Callable[[list[Body]], bool], run: str) -> list[Body]:
        async def look() -> tuple[bool, list[Body]]:
            found = await self.of_run(plural, run)
            return check(found), found

        return await eventually(f"{plural} of {run} {what}", look)


T = TypeVar("T")


async def eventually(
    what: str, look: Callable[[], Awaitable[tuple[bool, T]]], limit_seconds: float = LIMIT_SECONDS
) -> T:
    deadline = time.monotonic() + limit_seconds
    while True:
        is_so, seen = await look()
        if is_so:
            return seen
        assert time.monotonic() < deadline, f"not {what} within {limit_seconds:g} s: {_short(seen)}"
        await asyncio.sleep(0.08)


async def create_eventually(cluster: ClusterAccess, plural: str, body: Body) -> None:
    """A CRD that was just changed takes a moment to be in force."""

    async def attempt() -> tuple[bool, str]:
        try:
            await cluster.client.create(cluster.folder(plural), body, Body)
        except Invalid as error:
            return False, str(error)
        return True, ""

    await eventually("created", attempt)


def _short(seen: object) -> object:
    if isinstance(seen, list):
        return [
            (each["metadata"]["name"], each.get("status", {}).get("phase")) if isinstance(each, dict) else each
            for each in seen
        ]
    return seen.get("status", seen) if isinstance(seen, dict) else seen


def run_manifest(name: str, **spec: Any) -> Body:
    small: Body = {
        "model": {"name": "Qwen/Qwen3-0.6B"},
        "environments": [{"name": "letters", "config": {"group_size": 4}}],
        "training": {"steps": 100, "batchSize": 8},
        "storage": {"ephemeral": True},
        "restarts": {"limit": 3, "backoffSeconds": 0},
    }
    return {
        "apiVersion": "clotho.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": name},
        "spec": {**small, **spec},
    }


def component(pod: Body) -> str:
    return str(pod["metadata"]["labels"].get("app.kubernetes.io/component", ""))


def condition(run: Body, kind: str) -> Body:
    return next((c for c in run["status"].get("conditions", []) if c["type"] == kind), {})
