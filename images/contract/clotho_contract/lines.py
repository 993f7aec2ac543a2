"""What a child process prints, line by line."""

from asyncio import StreamReader
from collections.abc import AsyncIterator


async def lines_of(output: StreamReader) -> AsyncIterator[str]:
    """One beyond the stream's limit is left out; a reader that gave up there would block the child."""
    while True:
        try:
            line = await output.readline()
        except ValueError:
            continue
        if not line:
            return
        yield line.decode(errors="replace")
