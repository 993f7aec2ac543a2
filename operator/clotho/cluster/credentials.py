"""Where the API server is and as whom we talk to it."""

import ssl
import time
from collections.abc import Callable
from pathlib import Path

TOKEN_LIFETIME_SECONDS = 60.0  # projected tokens are rotated by the kubelet long before they expire


class CredentialsError(Exception):
    """No usable credentials; the message names the file and what to do."""


class Credentials:
    """A server address, a TLS context and a bearer token that is read again from its source when it grows old."""

    def __init__(
        self,
        server: str,
        tls: ssl.SSLContext | None,
        read_token: Callable[[], str | None],
        namespace: str = "default",
        proxy: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server = server.rstrip("/")
        self.tls = tls
        self.namespace = namespace
        self.proxy = proxy
        self._read_token = read_token
        self._clock = clock
        self._token: str | None = None
        self._read_at: float | None = None

    def token(self) -> str | None:
        if self._read_at is None or self._clock() - self._read_at >= TOKEN_LIFETIME_SECONDS:
            self._token = self._read_token()
            self._read_at = self._clock()
        return self._token

    def forget_token(self) -> None:
        """The server refused the token: read it again before the next request."""
        self._read_at = None

    def headers(self) -> dict[str, str]:
        token = self.token()
        return {"Authorization": f"Bearer {token}"} if token else {}


def read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise CredentialsError(
            f"cannot read {path}: {error.strerror}; name a kubeconfig with --kubeconfig or $KUBECONFIG"
        ) from error
