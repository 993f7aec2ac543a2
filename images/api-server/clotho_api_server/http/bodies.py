"""Request bodies within bounds: as they arrive, and expanded where they are compressed."""

import zlib
from typing import Final

from aiohttp import web

from clotho_api_server.refusals import RefusalError, TimedOutError, TooLargeError
from clotho_contract import request_body
from clotho_contract.memory_budget import Reservation
from clotho_contract.request_body import BodyTooLargeError, BodyTooSlowError

SMALL: Final = 1024**2  # everything but scored data
_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_MAGIC: Final = b"\x1f\x8b"


async def read(request: web.Request, limit: int, held: Reservation | None = None) -> bytes:
    """The body as it came over the wire, still compressed if it was; `held` grows with what has arrived."""
    try:
        return await request_body.read(request.content, request.content_length, limit, held)
    except BodyTooLargeError as error:
        raise TooLargeError(str(error)) from error
    except BodyTooSlowError as error:
        raise TimedOutError(str(error)) from error


def is_gzip(request: web.Request) -> bool:
    return "gzip" in request.headers.get("Content-Encoding", "").lower()


def expanded_length(compressed: bytes, limit: int) -> int:
    """As the last four bytes of a gzip body declare it; `expand` refuses a body with another length."""
    if compressed[:2] != _GZIP_MAGIC:
        raise RefusalError("Invalid gzip payload")
    declared = int.from_bytes(compressed[-4:], "little")
    if declared > limit:
        raise TooLargeError(str(BodyTooLargeError(declared, limit)))
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
