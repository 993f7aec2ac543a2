"""Streamable HTTP for agents: without a token on loopback only."""

import hmac
import ipaddress
from typing import Any, Final

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

PATH: Final = "/mcp"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class RequireToken:
    """Refuses requests without the bearer token before anything reads them."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await JSONResponse({"error": "a bearer token is required"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def serve_http(server: MCPServer[Any], host: str, port: int, token: str) -> None:
    """Until it is interrupted. On loopback the SDK checks the Host header; elsewhere the token protects it."""
    security = None if is_loopback(host) else TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app: ASGIApp = server.streamable_http_app(streamable_http_path=PATH, host=host, transport_security=security)
    config = uvicorn.Config(
        RequireToken(app, token) if token else app, host=host, port=port, log_level="warning", lifespan="on"
    )
    await uvicorn.Server(config).serve()
