"""Bounded requests to pods: four times cheaper than a general HTTP client, and what is read has a limit."""

import asyncio
from typing import cast

BODY_LIMIT = 256 * 1024


class ProbeFailed(Exception):  # noqa: N818 - an outcome, not a fault of this program
    """No usable answer; the message is short enough for a status."""


class _Exchange(asyncio.Protocol):
    """HTTP/1.0: one request, one answer, and the server closes."""

    def __init__(self, request: bytes, answer: "asyncio.Future[bytes]") -> None:
        self._request, self._answer = request, answer
        self._received = bytearray()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        cast(asyncio.WriteTransport, transport).write(self._request)  # uvloop's is not a subclass, only alike

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > BODY_LIMIT and self._transport is not None:
            self._fail(f"answered more than {BODY_LIMIT // 1024} KiB")
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._fail(str(exc))
        elif not self._answer.done():
            self._answer.set_result(bytes(self._received))

    def _fail(self, why: str) -> None:
        if not self._answer.done():
            self._answer.set_exception(ProbeFailed(why))


async def http_get(host: str, port: int, path: str, token: str | None, timeout_seconds: float) -> bytes:
    """The body of a 200; anything else is ProbeFailed."""
    return await _exchange(host, port, _head(f"GET {path}", host, port, token), timeout_seconds)


async def http_put(host: str, port: int, path: str, token: str | None, body: bytes, timeout_seconds: float) -> bytes:
    """The same for a PUT of JSON."""
    head = _head(f"PUT {path}", host, port, token, f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n")
    return await _exchange(host, port, head + body, timeout_seconds)


def _head(method_and_path: str, host: str, port: int, token: str | None, more: str = "") -> bytes:
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    lines = f"{method_and_path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n{authorization}{more}\r\n"
    return lines.encode()


async def _exchange(host: str, port: int, request: bytes, timeout_seconds: float) -> bytes:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            transport, _ = await loop.create_connection(lambda: _Exchange(request, answer), host, port)
            return _body(await answer)
    except TimeoutError:
        raise ProbeFailed(f"no answer on port {port} within {timeout_seconds:g} s") from None
    except OSError as error:
        raise ProbeFailed(f"port {port}: {error.strerror or error}") from None
    finally:
        if transport is not None:
            transport.close()


def _body(answer: bytes) -> bytes:
    head, separator, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if not separator or len(status) < 2 or not status[0].startswith(b"HTTP/1."):
        raise ProbeFailed("the answer is not HTTP")
    if status[1] != b"200":
        raise ProbeFailed(f"answered {status[1].decode(errors='replace')}")
    return body
