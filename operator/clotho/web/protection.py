"""What a request must look like before anything answers it, and the headers of every answer."""

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def refusal(host: str, headers: Mapping[str, str], allowed_hosts: Collection[str]) -> str:
    """Why a request is refused; empty where it is not. `allowed_hosts`: empty allows every name.

    A page of another site can reach this machine, even under a name of its own (DNS rebinding): both show here.
    """
    if allowed_hosts and host.lower() not in allowed_hosts:
        return f"this server does not answer for {host!r}; open the address that `clotho ui` printed"
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return "requests of other sites are refused"
    if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not _is_navigation(headers):
        return "requests of other sites are refused"
    return ""


def _is_navigation(headers: Mapping[str, str]) -> bool:
    """A link on another site may lead here: the page itself holds nothing before it has a token."""
    return headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"


def local_hosts(port: int) -> frozenset[str]:
    return frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})


def bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
