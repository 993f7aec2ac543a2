"""Answers of other processes, bounded when they are read."""

from typing import Final

import aiohttp

ANSWER_LIMIT: Final = 512 * 1024**2  # bytes; a group of long answers with log-probabilities has tens of MiB


async def read_answer(response: aiohttp.ClientResponse, limit: int = ANSWER_LIMIT) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            raise aiohttp.ClientPayloadError(f"the answer is longer than {limit} bytes")
    return bytes(body)
