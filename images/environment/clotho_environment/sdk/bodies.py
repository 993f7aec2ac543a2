"""Bodies from other processes: bounded when they are read, and one kind of error when they cannot be decoded."""

from typing import Any, Final

import aiohttp
import msgspec

ANSWER_LIMIT: Final = 512 * 1024**2  # bytes; a group of long answers with log-probabilities has tens of MiB


class UnreadableBodyError(ValueError):
    """The body is not the JSON that was expected."""


def decode(body: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise UnreadableBodyError("nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableBodyError(str(error)) from error


async def read_answer(response: aiohttp.ClientResponse, limit: int = ANSWER_LIMIT) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            raise aiohttp.ClientPayloadError(f"the answer is longer than {limit} bytes")
    return bytes(body)
