"""Reads a request's body with bounds on its size and on how slowly it may arrive."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final, Protocol

from clotho_contract.memory_budget import Reservation

LIMIT_SECONDS: Final = 30.0  # for the first byte and between any two
LEAST_BYTES_PER_SECOND: Final = 1024**2  # on average, once LIMIT_SECONDS are over


class BodyTooLargeError(Exception):
    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"the body has {length} bytes or more, the limit is {limit}")


class BodyTooSlowError(Exception):
    def __init__(self, length: int) -> None:
        super().__init__(f"the body came too slowly: {length} bytes so far")


class Stream(Protocol):
    """As aiohttp has it: the bytes that have arrived, none at the end."""

    async def readany(self) -> bytes: ...


async def read(stream: Stream, declared: int | None, limit: int, held: Reservation | None = None) -> bytes:
    """As it came over the wire; `held` grows with what has arrived."""
    if (declared or 0) > limit:
        raise BodyTooLargeError(declared or 0, limit)
    chunks: list[bytes] = []
    length = 0
    async for chunk in _paced(stream):
        chunks.append(chunk)
        length += len(chunk)
        if length > limit:
            raise BodyTooLargeError(length, limit)
        if held is not None:
            await held.grow(len(chunk))
    return b"".join(chunks)


async def _paced(stream: Stream) -> AsyncIterator[bytes]:
    """Only the time that the client takes counts, not what the server does between two chunks."""
    loop = asyncio.get_running_loop()
    length, seconds = 0, 0.0
    while True:
        allowed = LIMIT_SECONDS + length / LEAST_BYTES_PER_SECOND - seconds
        began = loop.time()
        try:
            async with asyncio.timeout(min(allowed, LIMIT_SECONDS)):
                chunk = await stream.readany()
        except TimeoutError as error:
            raise BodyTooSlowError(length) from error
        if not chunk:
            return
        seconds += loop.time() - began
        length += len(chunk)
        yield chunk
