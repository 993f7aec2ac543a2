"""One namespace as people and agents see it: the catalogue, runs, tests and policies, by kind and name."""

import re
from collections.abc import Mapping
from typing import Final, Literal

from clotho.api.names import API_VERSION, GROUP, RUN_LABEL, VERSION
from clotho.api.phases import STOPPABLE_PHASES, Phase
from clotho.cluster.client import ApiClient, Object
from clotho.cluster.outcomes import NotFound

OurKind = Literal["TrainingRun", "Environment", "InferenceTest", "TrainingPolicy"]
PLURALS: Final[Mapping[OurKind, str]] = {
    "TrainingRun": "trainingruns",
    "Environment": "environments",
    "InferenceTest": "inferencetests",
    "TrainingPolicy": "trainingpolicies",
}
MERGE: Final = "application/merge-patch+json"
PAGE: Final = "500"
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


class Workspace:
    def __init__(self, client: ApiClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    def folder(self, kind: OurKind) -> str:
        return f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURALS[kind]}"

    def path(self, kind: OurKind, name: str) -> str:
        """Names come from people and agents: what is not a valid name never becomes part of a path."""
        if not _NAME.fullmatch(name):
            raise NotFound(f"get {kind}", f"{PLURALS[kind]} {name!r} not found: not a valid name", 404, "NotFound")
        return f"{self.folder(kind)}/{name}"

    def core(self, path: str) -> str:
        """The path of a built-in object: pods, secrets, ..."""
        return f"/api/v1/namespaces/{self.namespace}/{path}"

    async def get(self, kind: OurKind, name: str) -> Object:
        return await self.client.get(self.path(kind, name), Object)

    async def all(self, kind: OurKind, selector: str = "") -> list[Object]:
        return await self._listed(self.folder(kind), **({"labelSelector": selector} if selector else {}))

    async def all_namespaces(self, kind: OurKind) -> list[Object]:
        return await self._listed(f"/apis/{GROUP}/{VERSION}/{PLURALS[kind]}")

    async def pods_of(self, run: str) -> list[Object]:
        return await self._listed(self.core("pods"), labelSelector=f"{RUN_LABEL}={run}")

    async def _listed(self, folder: str, **selection: str) -> list[Object]:
        items: list[Object] = []
        params = {"limit": PAGE, **selection}
        while True:
            page = await self.client.list(folder, Object, params)
            items += page.get("items") or []
            if not (more := page.get("metadata", {}).get("continue")):
                return items
            params["continue"] = more

    async def create(
        self, kind: OurKind, name: str, spec: Object, *, labelled: Mapping[str, Object] = {}, is_dry_run: bool = False
    ) -> Object:
        """`labelled`: labels and annotations of the object."""
        metadata = {**labelled, "name": name, "namespace": self.namespace}
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        params = {"dryRun": "All"} if is_dry_run else {}
        return await self.client.create(self.folder(kind), body, Object, **params)

    async def change(self, kind: OurKind, name: str, change: Object) -> Object:
        return await self.client.patch(self.path(kind, name), change, Object, MERGE)

    async def delete(self, kind: OurKind, name: str) -> None:
        await self.client.delete(self.path(kind, name), {}, Object)

    async def stop_run(self, name: str) -> Object:
        """For good, after a final checkpoint."""
        return await self._set(name, {"stop": True}, "stopped", STOPPABLE_PHASES)

    async def suspend_run(self, name: str) -> Object:
        return await self._set(name, {"suspend": True}, "suspended", STOPPABLE_PHASES - {"Suspended"})

    async def resume_run(self, name: str) -> Object:
        return await self._set(name, {"suspend": False}, "resumed", frozenset({"Suspended"}))

    async def _set(self, name: str, spec: Object, verb: str, phases: frozenset[Phase]) -> Object:
        run = await self.get("TrainingRun", name)
        phase = run.get("status", {}).get("phase", "Pending")
        if phase not in phases:
            allowed = ", ".join(sorted(phases))
            raise WrongStateError(f"run {name} is {phase} and cannot be {verb}; only {allowed} runs can", phase)
        return await self.change("TrainingRun", name, {"spec": spec})


class WrongStateError(Exception):
    def __init__(self, message: str, phase: str) -> None:
        super().__init__(message)
        self.phase = phase
