"""Reads request bodies with bounds: on each one's size, on how slowly it may come, and on what all hold together."""

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from clotho_api_server.refusals import RefusalError, TimedOutError, TooLargeError

SMALL: Final = 1024**2  # everything but scored data
PATIENCE_SECONDS: Final = 30.0  # for the first byte and between any two
LEAST_BYTES_PER_SECOND: Final = 64 * 1024
_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_MAGIC: Final = b"\x1f\x8b"


class Budget:
    """Bytes that may be in memory at once. Whoever comes first is served first; others wait in their sockets."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = total
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, amount: int) -> AsyncIterator[None]:
        amount = min(amount, self._total)
        await self._take(amount)
        try:
            yield
        finally:
            self._free += amount
            self._serve_waiters()

    async def _take(self, amount: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((amount, turn))
        self._serve_waiters()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free += amount
            else:
                self._waiters.remove((amount, turn))
            self._serve_waiters()
            raise

    def _serve_waiters(self) -> None:
        while self._waiters and self._waiters[0][0] <= self._free:
            amount, turn = self._waiters.popleft()
            if not turn.cancelled():
                self._free -= amount
                turn.set_result(None)


async def read(request: web.Request, limit: int) -> bytes:
    """The body as it came over the wire, still compressed if it was."""
    declared = request.content_length or 0
    if declared > limit:
        raise too_large(declared, limit)
    chunks: list[bytes] = []
    length = 0
    try:
        async with (
            asyncio.timeout(PATIENCE_SECONDS + max(declared, SMALL) / LEAST_BYTES_PER_SECOND),
            asyncio.timeout(PATIENCE_SECONDS) as patience,
        ):
            while chunk := await request.content.readany():
                patience.reschedule(asyncio.get_running_loop().time() + PATIENCE_SECONDS)
                chunks.append(chunk)
                length += len(chunk)
                if length > limit:
                    raise too_large(length, limit)
    except TimeoutError as error:
        raise TimedOutError(f"the body came too slowly: {length} bytes so far") from error
    return b"".join(chunks)


def is_gzip(request: web.Request) -> bool:
    return "gzip" in request.headers.get("Content-Encoding", "").lower()


def expanded_length(compressed: bytes) -> int:
    """What a gzip body says of itself in its last four bytes; `expand` holds it to that."""
    if compressed[:2] != _GZIP_MAGIC:
        raise RefusalError("Invalid gzip payload")
    return int.from_bytes(compressed[-4:], "little")


def expand(compressed: bytes, limit: int) -> bytes:
    declared = expanded_length(compressed)
    if declared > limit:
        raise too_large(declared, limit)
    stream = zlib.decompressobj(_GZIP)
    try:
        body = stream.decompress(compressed, declared + 1)
    except zlib.error as error:
        raise RefusalError("Invalid gzip payload") from error
    if not stream.eof or len(body) != declared or stream.unused_data:
        raise RefusalError("Invalid gzip payload")
    return body


def too_large(length: int, limit: int) -> TooLargeError:
    return TooLargeError(f"the body has {length} bytes or more, the limit is {limit}")
