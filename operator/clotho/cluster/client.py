"""One keep-alive HTTP client for the Kubernetes API: typed answers, typed refusals, one time limit for everything."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from clotho.cluster.credentials import Credentials
from clotho.cluster.outcomes import Status, Transient, Unauthorized, from_answer

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML: the server takes it under this name
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

T = TypeVar("T")
Object = dict[str, Any]
"""A Kubernetes object as plain JSON, at the edge only."""


def _unobserved(verb: str, code: str) -> None:
    return


class ApiClient:
    """`on_answer(verb, code)` is told of every request; the code is `error` when no answer came."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        timeout_seconds: float = 30.0,
        connections: int = 32,
        on_answer: Callable[[str, str], None] = _unobserved,
    ) -> None:
        self._credentials = credentials
        self._on_answer = on_answer
        self._session = aiohttp.ClientSession(
            base_url=credentials.server,
            connector=aiohttp.TCPConnector(limit=connections, ssl=credentials.tls or False, keepalive_timeout=75),
            timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            headers={"User-Agent": "clotho-operator"},
        )

    async def __aenter__(self) -> "ApiClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, answer: type[T], **params: str) -> T:
        return msgspec.json.decode(await self._send("get", path, params=params), type=answer)

    async def list(self, path: str, answer: type[T], params: Mapping[str, str], *, only_metadata: bool = False) -> T:
        accept = METADATA_ONLY if only_metadata else JSON
        return msgspec.json.decode(await self._send("list", path, params=params, accept=accept), type=answer)

    async def create(self, path: str, body: object, answer: type[T], **params: str) -> T:
        return msgspec.json.decode(await self._send("create", path, body, params=params), type=answer)

    async def replace(self, path: str, body: object, answer: type[T], **params: str) -> T:
        return msgspec.json.decode(await self._send("update", path, body, params=params), type=answer)

    async def patch(self, path: str, body: object, answer: type[T], content_type: str, **params: str) -> T:
        return msgspec.json.decode(await self._send("patch", path, body, content_type, params), type=answer)

    async def delete(self, path: str, options: object, answer: type[T]) -> T:
        return msgspec.json.decode(await self._send("delete", path, options), type=answer)

    async def _send(
        self,
        verb: str,
        path: str,
        body: object = None,
        content_type: str = JSON,
        params: Mapping[str, str] = {},
        accept: str = JSON,
    ) -> bytes:
        headers = {"Content-Type": content_type, "Accept": accept}
        data = msgspec.json.encode(body) if body is not None else None
        try:
            return await self._send_once(verb, path, data, headers, params)
        except Unauthorized:  # a rotated token: read it again and repeat, once
            self._credentials.forget_token()
            return await self._send_once(verb, path, data, headers, params)

    async def _send_once(
        self, verb: str, path: str, data: bytes | None, headers: Mapping[str, str], params: Mapping[str, str]
    ) -> bytes:
        headers = {**headers, **self._credentials.headers()}
        try:
            async with self._session.request(_METHODS[verb], path, data=data, headers=headers, params=params) as answer:
                raw = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._on_answer(verb, "error")
            raise Transient(f"{verb} {path}", str(error) or type(error).__name__) from error
        self._on_answer(verb, str(answer.status))
        if answer.status < 400:
            return raw
        raise from_answer(f"{verb} {path}", answer.status, _status(raw), answer.headers.get("Retry-After"))


_METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}


def _status(raw: bytes) -> Status:
    try:
        return msgspec.json.decode(raw, type=Status)
    except msgspec.MsgspecError:
        return Status(message=raw[:200].decode(errors="replace").strip())
