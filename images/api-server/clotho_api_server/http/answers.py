"""How handlers read small JSON and answer it."""

from typing import TypeVar

import msgspec
from aiohttp import web

from clotho_api_server.http import bodies
from clotho_api_server.parsing.decoding import decode

T = TypeVar("T")


def answer(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")


async def asked(request: web.Request, kind: type[T]) -> T:
    """The small JSON object in a request, whatever content type it claims."""
    body = await bodies.read(request, bodies.SMALL)
    if body and bodies.is_gzip(request):
        body = bodies.expand(body, bodies.SMALL)
    return decode(body, msgspec.json.Decoder(kind))
