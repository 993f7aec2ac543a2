"""Which token opens which route."""

import base64

import pytest
from aiohttp import web

from clotho_api_server.http.access import ALLOWED, EVERYTHING_OPEN, OPEN, Access, Role, single_token
from clotho_api_server.http.app import add_routes
from clotho_api_server.refusals import ForbiddenError, UnauthorizedError
from clotho_api_server.state.service import Service

ACCESS = single_token("run-token", "admin-token")
ROLES: tuple[Role, ...] = ("environment", "trainer", "operator", "administrator")
SEPARATE = Access({role: (f"{role}-token",) for role in ROLES})


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def routes_of(access: Access, token: str) -> set[str]:
    allowed = set()
    for route in {*ALLOWED, "/a-route-without-an-entry"}:
        try:
            access.check(route, f"Bearer {token}")
        except ForbiddenError:
            continue
        allowed.add(route)
    return allowed


USED_BY_ALL = {"/evaluations", "/info", "/wandb_info", "/openapi.json"}
LEASES = {"/lease", "/lease/{id}/renew", "/lease/{id}/ack", "/lease/{id}/release", "/checkpointed", "/batch"}


@pytest.mark.parametrize(
    ("role", "routes"),
    [
        ("environment", {"/register-env", "/disconnect-env", "/status-env", "/scored_data", "/scored_data_list"}),
        ("trainer", {"/register", "/status", "/latest_example", *LEASES}),
        ("operator", {"/status", "/latest_example"}),
    ],
)
def test_each_role_has_its_own_routes(role: Role, routes: set[str]) -> None:
    assert routes_of(SEPARATE, f"{role}-token") == routes | USED_BY_ALL


def test_the_administrator_has_every_route() -> None:
    assert routes_of(SEPARATE, "administrator-token") == {*ALLOWED, "/a-route-without-an-entry"}


def test_a_refusal_names_the_token_that_is_needed() -> None:
    with pytest.raises(ForbiddenError, match=r"environment's token: .* trainer's \(\$CLOTHO_TRAINER_TOKEN"):
        SEPARATE.check("/lease", "Bearer environment-token")


def test_a_token_of_several_roles_has_the_routes_of_all() -> None:
    shared = Access(dict.fromkeys(ROLES[:3], ("old-token",)))
    assert routes_of(shared, "old-token") == set(ALLOWED) - {"/reset_data"}


def test_every_route_is_open_or_has_an_entry() -> None:
    app = web.Application()
    add_routes(app, object.__new__(Service))
    served = {route.resource.canonical for route in app.router.routes() if route.resource}
    assert served - OPEN == set(ALLOWED)


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
def test_other_credentials_are_refused(header: str | None) -> None:
    for path in ("/status", "/batch", "/reset_data", "/openapi.json", "/healthz/"):
        with pytest.raises(UnauthorizedError):
            ACCESS.check(path, header)


def test_the_administrator_may_do_everything() -> None:
    ACCESS.check("/reset_data", "Bearer admin-token")
    ACCESS.check("/status", basic("root", "admin-token"))


def test_without_an_administrators_token_reset_is_closed() -> None:
    for access in (single_token("run-token"), Access({"trainer": ("run-token",)})):
        with pytest.raises(ForbiddenError):
            access.check("/reset_data", "Bearer run-token")
        with pytest.raises(UnauthorizedError):
            access.check("/reset_data", "Bearer ")


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics"])
def test_health_is_open(path: str) -> None:
    ACCESS.check(path, None)


def test_open_access_is_for_everything() -> None:
    EVERYTHING_OPEN.check("/reset_data", None)
