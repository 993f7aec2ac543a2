"""Tokens in requests: how clients send them and how servers compare them."""

import base64
import binascii
import hmac
from collections.abc import Iterable


def presented_token(authorization: str | None) -> str:
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


def is_accepted(presented: str, tokens: Iterable[str]) -> bool:
    """Compared in constant time; an empty token is never accepted."""
    sent = presented.encode(errors="surrogateescape")
    return any(hmac.compare_digest(sent, token.encode()) for token in tokens if token)
