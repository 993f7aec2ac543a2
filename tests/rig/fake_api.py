"""The API server's part in unit tests: objects by path, versions that grow, merge patches, refusals on demand."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import msgspec

from clotho.cluster.client import APPLY, ApiClient
from clotho.cluster.outcomes import AlreadyExists, ApiError, Conflict, NotFound
from clotho.workspace.objects import OurKind, Workspace

Body = dict[str, Any]
NAMESPACE = "lab"


class FakeApi:
    """Stands where `ApiClient` does. `refusals` maps the start of a request (`create /apis/...`) to what it gets."""

    def __init__(self) -> None:
        self.objects: dict[str, Body] = {}
        self.refusals: dict[str, ApiError] = {}
        self.requests: list[str] = []
        self.bodies: list[Any] = []  # what was sent with each request, else None
        self.channels: list[bytes] = []  # what an exec sends: the channel's number, then its data
        self.texts: dict[str, bytes] = {}  # what streams send
        self._version = 0

    @property
    def workspace(self) -> Workspace:
        return Workspace(cast(ApiClient, self), NAMESPACE)

    def add(self, kind: OurKind, name: str, spec: Body, status: Body | None = None) -> Body:
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-of-{name}", "generation": 1}
        metadata["creationTimestamp"] = "2026-11-15T12:00:00Z"
        body = {"metadata": metadata, "spec": spec, "status": status or {}}
        return self._store(f"{self.workspace.folder(kind)}/{name}", body)

    def _store(self, path: str, body: Body) -> Body:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = body
        return body

    async def __aexit__(self, *_: object) -> None:
        """There is no connection to close."""

    def _note(self, request: str, body: object = None) -> None:
        self.requests.append(request)
        self.bodies.append(body)
        for start, refusal in self.refusals.items():
            if request.startswith(start):
                raise refusal

    async def get(self, path: str, answer: type[Any], **_: str) -> Any:
        self._note(f"get {path}")
        return msgspec.json.decode(msgspec.json.encode(self._present("get", path)), type=answer)

    def _present(self, verb: str, path: str) -> Body:
        if path not in self.objects:
            raise NotFound(f"{verb} {path}", f"{path.rpartition('/')[2]!r} not found", 404, "NotFound")
        return self.objects[path]

    async def list(
        self, path: str, answer: type[Any], params: Mapping[str, str], *, only_metadata: bool = False
    ) -> Any:
        self._note(f"list {path}")
        wanted = dict(pair.split("=") for pair in params.get("labelSelector", "").split(",") if pair)
        items = [
            body
            for where, body in sorted(self.objects.items())
            if where.rpartition("/")[0] == path and wanted.items() <= body["metadata"].get("labels", {}).items()
        ]
        return msgspec.json.decode(msgspec.json.encode({"items": items}), type=answer)

    async def create(self, path: str, body: Any, answer: type[Any], **params: str) -> Any:
        self._note(f"create {path}", body)
        name = body["metadata"]["name"] if "metadata" in body else ""
        where = f"{path}/{name}"
        if where in self.objects:
            raise AlreadyExists(f"create {where}", f"{name} already exists", 409, "AlreadyExists")
        made = msgspec.json.decode(msgspec.json.encode(body), type=dict[str, Any])
        made.setdefault("metadata", {})["uid"] = f"uid-of-{name}"
        return made if params.get("dryRun") or not name else self._store(where, made)

    async def replace(self, path: str, body: Body, answer: type[Any], **_: str) -> Any:
        self._note(f"replace {path}", body)
        self._check_version("replace", path, body)
        return self._store(path, body)

    async def patch(self, path: str, body: Body, answer: type[Any], content_type: str, **params: str) -> Any:
        self._note(f"patch {path}", body)
        if content_type == APPLY and path not in self.objects:
            return self._store(path, merged({}, body))
        if content_type == APPLY and "force" not in params:
            raise Conflict(f"patch {path}", "another manager has set these fields", 409, "Conflict")
        self._check_version("patch", path, body)
        return self._store(path, merged(self.objects[path], body))

    def _check_version(self, verb: str, path: str, body: Body) -> None:
        version = body.get("metadata", {}).get("resourceVersion")
        present = self._present(verb, path)["metadata"]["resourceVersion"]
        if version is not None and version != present:
            raise Conflict(f"{verb} {path}", "the object has been modified", 409, "Conflict")

    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        self._note(f"stream {path}")
        if path not in self.texts:
            raise NotFound(f"get {path}", "not found", 404, "NotFound")
        yield self.texts[path]

    @asynccontextmanager
    async def open_channels(self, path: str, params: Sequence[tuple[str, str]]) -> AsyncIterator[AsyncIterator[Any]]:
        self._note(f"exec {path} {' '.join(value for name, value in params if name == 'command')}")

        async def messages() -> AsyncIterator[aiohttp.WSMessage]:
            for message in self.channels:
                yield aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, message, None)

        yield messages()

    async def delete(self, path: str, options: object, answer: type[Any]) -> Any:
        """What gets a grace period is terminating first."""
        self._note(f"delete {path}", options)
        body = self._present("delete", path)
        if getattr(options, "grace_period_seconds", None):
            body["metadata"]["deletionTimestamp"] = "2026-11-15T12:00:00Z"
            return self._store(path, body)
        return self.objects.pop(path)


def merged(old: Body, change: Body) -> Body:
    kept = {key: value for key, value in old.items() if key not in change}
    for key, value in change.items():
        if isinstance(value, dict):
            kept[key] = merged(old.get(key) or {}, value)
        elif value is not None:
            kept[key] = value
    return kept


FIELDS = [
    {"name": "group_size", "type": "integer", "default": 16, "minimum": 1, "description": "Attempts at each item."},
    {"name": "temperature", "type": "number | null", "exclusiveMinimum": 0.0, "maximum": 10.0},
    {"name": "words", "type": "array", "default": ["red"]},
    {"name": "mode", "type": "string", "default": "easy", "enum": ["easy", "hard"]},
    {"name": "rollout_server_url", "type": "string", "default": "http://api-server", "fixed": True},
]
READY = {"type": "Ready", "status": "True", "reason": "Described", "message": "", "observedGeneration": 1}


def described(fields: Any = FIELDS, **status: Any) -> Body:
    """The status of an environment that the operator has described."""
    ready = READY | {"lastTransitionTime": "2026-11-15T12:00:00Z"}
    return {"className": "Echo", "description": "Say the word.", "fields": fields, "conditions": [ready], **status}
