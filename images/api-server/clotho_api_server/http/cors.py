"""Cross-origin requests of browsers, for the origins that the administrator names. Off by default."""

from collections.abc import Collection
from typing import Final

from aiohttp import web

from clotho_api_server.http.access import Handler

ANY_ORIGIN: Final = "*"
MAX_AGE_SECONDS: Final = 600
_METHODS: Final = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"


def allow_origins(app: web.Application, origins: Collection[str]) -> None:
    """To be called first: a preflight request carries no token, and every answer needs the headers, errors too."""

    def is_allowed(request: web.Request) -> bool:
        origin = request.headers.get("Origin")
        return origin is not None and (ANY_ORIGIN in origins or origin in origins)

    @web.middleware
    async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_preflight = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if not (is_preflight and is_allowed(request)):
            return await handler(request)
        headers = {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", ""),
            "Access-Control-Max-Age": str(MAX_AGE_SECONDS),
        }
        return web.Response(text="OK", headers=headers)

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        if is_allowed(request):
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["Access-Control-Allow-Credentials"] = "true"
            response.headers["Vary"] = "Origin"

    app.middlewares.insert(0, answer_preflight)
    app.on_response_prepare.append(add_headers)
