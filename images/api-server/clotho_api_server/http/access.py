"""Who may ask: the run's token for everything but health, the administrator's for what destroys data."""

import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from msgspec import Struct

from clotho_api_server.refusals import ForbiddenError, UnauthorizedError
from clotho_contract.names import ADMIN_TOKEN_VARIABLE

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN: Final = frozenset({"/", "/healthz", "/readyz", "/metrics"})
ADMINISTRATORS_ONLY: Final = frozenset({"/reset_data"})


class Access(Struct, frozen=True):
    """`token` None means that everyone may do everything: for local use, asked for explicitly."""

    token: str | None
    admin_token: str | None = None

    def check(self, path: str, authorization: str | None) -> None:
        if self.token is None or path in OPEN:
            return
        presented = secret_of(authorization)
        is_admin = self.admin_token is not None and _same(presented, self.admin_token)
        if not is_admin and not _same(presented, self.token):
            raise UnauthorizedError(
                "the run's token is missing or wrong: send it as a bearer token, or as the password in the URL"
            )
        if path in ADMINISTRATORS_ONLY and not is_admin:
            raise ForbiddenError(f"{path} needs the administrator's token (${ADMIN_TOKEN_VARIABLE} of the server)")


def secret_of(authorization: str | None) -> str:
    """The token of a bearer header, or the password of a basic one, whatever the user; empty when there is none."""
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def _same(presented: str, expected: str) -> bool:
    return hmac.compare_digest(presented.encode(errors="surrogateescape"), expected.encode())
