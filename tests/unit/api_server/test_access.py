"""Who may come in."""

import base64

import pytest

from clotho_api_server.http.access import Access
from clotho_api_server.refusals import ForbiddenError, UnauthorizedError

ACCESS = Access("run-token", "admin-token")


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "header", ["Bearer run-token", "bearer run-token", basic("anyone", "run-token"), basic("", "run-token")]
)
def test_the_runs_token_opens_everything_but_reset(header: str) -> None:
    ACCESS.check("/status", header)
    with pytest.raises(ForbiddenError):
        ACCESS.check("/reset_data", header)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Basic ???",
        "Basic /w==",
        basic("run-token", ""),
        "Digest run-token",
        "Bearer \udcff",
    ],
)
def test_anything_else_does_not(header: str | None) -> None:
    for path in ("/status", "/batch", "/reset_data", "/openapi.json", "/healthz/"):
        with pytest.raises(UnauthorizedError):
            ACCESS.check(path, header)


def test_the_administrator_may_do_everything() -> None:
    ACCESS.check("/reset_data", "Bearer admin-token")
    ACCESS.check("/status", basic("root", "admin-token"))


def test_without_an_administrators_token_nobody_resets() -> None:
    with pytest.raises(ForbiddenError):
        Access("run-token").check("/reset_data", "Bearer run-token")


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics"])
def test_health_is_open(path: str) -> None:
    ACCESS.check(path, None)


def test_open_access_is_for_everything() -> None:
    Access(None).check("/reset_data", None)
