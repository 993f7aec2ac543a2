"""Reads request bodies with bounds on their size and on how slowly they may arrive."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from clotho_api_server.http.budget import Reservation
from clotho_api_server.refusals import RefusalError, TimedOutError, TooLargeError

SMALL: Final = 1024**2  # everything but scored data
LIMIT_SECONDS: Final = 30.0  # for the first byte and between any two
LEAST_BYTES_PER_SECOND: Final = 1024**2  # on average, once LIMIT_SECONDS are over
_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_MAGIC: Final = b"\x1f\x8b"


async def read(request: web.Request, limit: int, held: Reservation | None = None) -> bytes:
    """The body as it came over the wire, still compressed if it was; `held` grows with what has arrived."""
    if (request.content_length or 0) > limit:
        raise too_large(request.content_length or 0, limit)
    chunks: list[bytes] = []
    length = 0
    async for chunk in _paced(request):
        chunks.append(chunk)
        length += len(chunk)
        if length > limit:
            raise too_large(length, limit)
        if held is not None:
            await held.grow(len(chunk))
    return b"".join(chunks)


async def _paced(request: web.Request) -> AsyncIterator[bytes]:
    """Only the time that the client takes counts, not what the server does between two chunks."""
    loop = asyncio.get_running_loop()
    length, seconds = 0, 0.0
    while True:
        allowed = LIMIT_SECONDS + length / LEAST_BYTES_PER_SECOND - seconds
        began = loop.time()
        try:
            async with asyncio.timeout(min(allowed, LIMIT_SECONDS)):
                chunk = await request.content.readany()
        except TimeoutError as error:
            raise TimedOutError(f"the body came too slowly: {length} bytes so far") from error
        if not chunk:
            return
        seconds += loop.time() - began
        length += len(chunk)
        yield chunk


def is_gzip(request: web.Request) -> bool:
    return "gzip" in request.headers.get("Content-Encoding", "").lower()


def expanded_length(compressed: bytes, limit: int) -> int:
    """As the last four bytes of a gzip body declare it; `expand` refuses a body with another length."""
    if compressed[:2] != _GZIP_MAGIC:
        raise RefusalError("Invalid gzip payload")
    declared = int.from_bytes(compressed[-4:], "little")
    if declared > limit:
        raise too_large(declared, limit)
    return declared


def expand(compressed: bytes, limit: int) -> bytes:
    declared = expanded_length(compressed, limit)
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
