"""HTTP sessions to the other pods of the run: authenticated, and quick to notice a peer that vanished."""

import socket
from typing import Any

import aiohttp

_KEEPALIVE = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 15,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 5,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
}


def open_session(token: str, total_seconds: float | None = None) -> aiohttp.ClientSession:
    """No limit on the total by default: long generations are bounded by the rollout's own time-out."""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=aiohttp.ClientTimeout(total=total_seconds, sock_connect=10),
        connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket),
    )


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    connection = socket.socket(family, kind, protocol)
    for (level, option), value in _KEEPALIVE.items():
        connection.setsockopt(level, option, value)
    return connection
