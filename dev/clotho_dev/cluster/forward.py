"""Carries connections from a port of the host to the API server in the cluster's network namespace.

The listening socket was opened on the host and inherited: no bridge, route or rule of the host is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket


def serve(descriptor: int, port: int) -> None:
    asyncio.run(_serve(socket.socket(fileno=descriptor), port))


async def _serve(listener: socket.socket, port: int) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        inner_writer.close()
        writer.close()

    server = await asyncio.start_server(carry, sock=listener)
    await server.serve_forever()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(1 << 16):
            target.write(chunk)
            await target.drain()
        target.write_eof()
