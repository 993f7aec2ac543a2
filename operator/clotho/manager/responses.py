"""What Kopf receives from the API server: the same answers, with objects that are nested too deeply cut."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import aiohttp

from clotho.cluster.nesting import IN_EVENT, IN_LIST, bounded

if TYPE_CHECKING:
    from aiohttp.connector import Connection


class BoundedResponse(aiohttp.ClientResponse):
    """Kopf reads lists as a whole, and watches in chunks from `content`."""

    async def start(self, connection: "Connection") -> aiohttp.ClientResponse:
        await super().start(connection)
        if "watch" in self.url.query:
            self.content = _BoundedLines(self.content)  # type: ignore[assignment] # the parts of it that are used
        return self

    async def read(self) -> bytes:
        self._body = bounded(await super().read(), IN_LIST)
        return self._body


class _BoundedLines:
    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Whole lines; one that was cut off at the end is dropped: the next watch delivers that event again."""
        rest = b""
        async for chunk in self._content.iter_chunked(size):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield bounded(line, IN_EVENT) + b"\n"
