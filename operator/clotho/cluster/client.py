"""One keep-alive HTTP client for the Kubernetes API: typed answers, typed refusals, one time limit for everything."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from clotho.cluster.credentials import Credentials, CredentialsError
from clotho.cluster.nesting import BARE, IN_LIST, bounded
from clotho.cluster.outcomes import (
    Forbidden,
    NoCredentials,
    NotFound,
    Status,
    Transient,
    Unauthorized,
    Undecodable,
    from_answer,
)
from clotho_contract.retry import reason_of

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML: the server takes it under this name
MERGE: Final = "application/merge-patch+json"
CHANNELS: Final = "v4.channel.k8s.io"
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

T = TypeVar("T")
Object = dict[str, Any]
"""A Kubernetes object as plain JSON, at the edge only."""


def _unobserved(verb: str, code: str) -> None:
    return


class ApiClient:
    """`on_answer(verb, code)` is called for every request; the code is `error` when no answer came.

    Watches, logs and exec stay open and must not take the connections of other requests: at most `streams` of their
    own, where 0 means any number.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        timeout_seconds: float = 30.0,
        connections: int = 32,
        streams: int = 0,
        on_answer: Callable[[str, str], None] = _unobserved,
        user_agent: str = "clotho-operator",
    ) -> None:
        self._credentials = credentials
        self._on_answer = on_answer
        self._timeout = timeout_seconds
        self._session = self._new_session(connections, user_agent)
        self._streams = self._new_session(streams, user_agent)

    def _new_session(self, connections: int, user_agent: str) -> aiohttp.ClientSession:
        tls = self._credentials.tls or False
        return aiohttp.ClientSession(
            base_url=self._credentials.server,
            proxy=self._credentials.proxy,
            connector=aiohttp.TCPConnector(limit=connections, ssl=tls, keepalive_timeout=75),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers={"User-Agent": user_agent},
        )

    async def __aenter__(self) -> "ApiClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._streams.close()

    async def get(self, path: str, answer: type[T], **params: str) -> T:
        return _decoded("get", path, await self._send("get", path, params=params), answer)

    async def exists(self, path: str) -> bool:
        """Without reading the contents; what may not be read is assumed to be there."""
        try:
            await self._send("get", path, accept=METADATA)
        except NotFound:
            return False
        except Forbidden:
            return True
        return True

    async def list(self, path: str, answer: type[T], params: Mapping[str, str], *, only_metadata: bool = False) -> T:
        accept = METADATA_ONLY if only_metadata else JSON
        return _decoded("list", path, await self._send("list", path, params=params, accept=accept), answer, IN_LIST)

    async def create(self, path: str, body: object, answer: type[T], **params: str) -> T:
        return _decoded("create", path, await self._send("create", path, body, params=params), answer)

    async def replace(self, path: str, body: object, answer: type[T], **params: str) -> T:
        return _decoded("update", path, await self._send("update", path, body, params=params), answer)

    async def patch(self, path: str, body: object, answer: type[T], content_type: str, **params: str) -> T:
        return _decoded("patch", path, await self._send("patch", path, body, content_type, params), answer)

    async def delete(self, path: str, options: object, answer: type[T]) -> T:
        return _decoded("delete", path, await self._send("delete", path, options), answer)

    async def stream(
        self, path: str, params: Mapping[str, str], silence_seconds: float | None = None
    ) -> AsyncIterator[bytes]:
        """An answer piece by piece, for as long as it lasts: logs and watches. Longer silence means it is lost."""
        no_end = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=silence_seconds)
        headers = self._authorization(f"get {path}")
        try:
            async with self._streams.get(path, params=params, headers=headers, timeout=no_end) as answer:
                if answer.status >= 400:
                    raise from_answer(f"get {path}", answer.status, _status(await answer.read()), None)
                async for piece in answer.content.iter_any():
                    yield piece
        except Unauthorized:
            self._credentials.forget_token()  # a rotated one: the next attempt reads it again
            raise
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Transient(f"get {path}", reason_of(error)) from error

    @asynccontextmanager
    async def open_channels(
        self, path: str, params: Sequence[tuple[str, str]]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket to a running container (exec); the first byte of each message names its channel."""
        try:
            async with self._streams.ws_connect(
                path,
                params=params,
                headers=self._authorization(f"exec {path}"),
                protocols=(CHANNELS,),
                max_msg_size=0,
                timeout=aiohttp.ClientWSTimeout(ws_receive=None),
            ) as socket:
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            raise from_answer(f"exec {path}", error.status, Status(message=error.message), None) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Transient(f"exec {path}", reason_of(error)) from error

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
        headers = {**headers, **self._authorization(f"{verb} {path}")}
        try:
            async with self._session.request(_METHODS[verb], path, data=data, headers=headers, params=params) as answer:
                raw = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._on_answer(verb, "error")
            raise Transient(f"{verb} {path}", reason_of(error)) from error
        self._on_answer(verb, str(answer.status))
        if answer.status < 400:
            return raw
        raise from_answer(f"{verb} {path}", answer.status, _status(raw), answer.headers.get("Retry-After"))

    def _authorization(self, what: str) -> Mapping[str, str]:
        try:
            return self._credentials.headers()
        except CredentialsError as error:
            raise NoCredentials(what, str(error)) from error


_METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}


def _decoded(verb: str, path: str, raw: bytes, answer: type[T], surrounding: int = BARE) -> T:
    try:
        return msgspec.json.decode(bounded(raw, surrounding), type=answer)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"{verb} {path}", f"the answer cannot be decoded: {error}") from error


def _status(raw: bytes) -> Status:
    try:
        return msgspec.json.decode(bounded(raw), type=Status)
    except msgspec.MsgspecError:
        return Status(message=raw[:200].decode(errors="replace").strip())
