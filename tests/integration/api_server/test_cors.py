"""Pages of other origins: closed by default, open as Atropos' server is on request."""

from __future__ import annotations

import pytest

from clotho_api_server.http.access import single_token

PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


async def headers_of(api, method: str, path: str, origin: str, **more: str) -> tuple[int, dict[str, str]]:
    async with api.session.request(method, api.url + path, headers={"Origin": origin, **more}) as response:
        found = {name.lower(): value for name, value in response.headers.items()}
        return response.status, {name: value for name, value in found.items() if name.startswith("access-control-")}


async def test_no_origin_is_allowed_by_default(api) -> None:
    assert await headers_of(api, "GET", "/status", "https://page") == (200, {})
    assert (await headers_of(api, "OPTIONS", "/register", "https://page", **PREFLIGHT))[0] == 405


@pytest.mark.parametrize(
    ("origins", "origin", "is_allowed"),
    [
        (("*",), "https://page", True),
        (("https://page",), "https://page", True),
        (("https://page",), "https://x", False),
    ],
)
async def test_named_origins_are_allowed(servers, origins: tuple[str, ...], origin: str, is_allowed: bool) -> None:
    async with servers.serving(origins=origins, access=single_token("secret")) as api:
        expected = (
            {"access-control-allow-origin": origin, "access-control-allow-credentials": "true"} if is_allowed else {}
        )
        for path, status in (("/", 200), ("/status", 401)):
            assert await headers_of(api, "GET", path, origin) == (status, expected)


async def test_a_preflight_request_needs_no_token(servers) -> None:
    async with servers.serving(origins=("*",), access=single_token("secret")) as api:
        status, headers = await headers_of(api, "OPTIONS", "/register", "https://page", **PREFLIGHT)
        assert status == 200
        assert headers["access-control-allow-headers"] == "authorization"
        assert "POST" in headers["access-control-allow-methods"]
        assert headers["access-control-max-age"] == "600"
