"""Which role may use which route. A route without an entry here is the administrator's."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from aiohttp import web
from msgspec import Struct

from clotho_api_server.refusals import ForbiddenError, UnauthorizedError
from clotho_contract.access import is_accepted, presented_token
from clotho_contract.names import (
    ADMIN_TOKEN_VARIABLE,
    ENVIRONMENT_TOKEN_VARIABLE,
    OPERATOR_TOKEN_VARIABLE,
    TRAINER_TOKEN_VARIABLE,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Role = Literal["environment", "trainer", "operator", "administrator"]

VARIABLES: Final[Mapping[Role, str]] = {
    "environment": ENVIRONMENT_TOKEN_VARIABLE,
    "trainer": TRAINER_TOKEN_VARIABLE,
    "operator": OPERATOR_TOKEN_VARIABLE,
    "administrator": ADMIN_TOKEN_VARIABLE,
}
OPEN: Final = frozenset({"/", "/healthz", "/readyz", "/metrics"})
_SUBMITS: Final = frozenset[Role]({"environment"})
_TRAINS: Final = frozenset[Role]({"trainer"})
_WATCHES: Final = frozenset[Role]({"trainer", "operator"})
_ANY: Final = frozenset[Role]({"environment", "trainer", "operator"})
ALLOWED: Final[Mapping[str, frozenset[Role]]] = {
    "/register-env": _SUBMITS,
    "/disconnect-env": _SUBMITS,
    "/status-env": _SUBMITS,
    "/scored_data": _SUBMITS,
    "/scored_data_list": _SUBMITS,
    "/evaluations": _ANY,
    "/register": _TRAINS,
    "/batch": _TRAINS,
    "/lease": _TRAINS,
    "/lease/{id}/renew": _TRAINS,
    "/lease/{id}/ack": _TRAINS,
    "/lease/{id}/release": _TRAINS,
    "/checkpointed": _TRAINS,
    "/status": _WATCHES,
    "/latest_example": _WATCHES,
    "/info": _ANY,
    "/wandb_info": _ANY,
    "/openapi.json": _ANY,
    "/reset_data": frozenset(),
}


class Access(Struct, frozen=True):
    """The tokens of each role. One token may have several roles; without any tokens everything is open."""

    tokens: Mapping[Role, tuple[str, ...]]

    def check(self, route: str, authorization: str | None) -> None:
        """`route` is the path as it is registered, such as `/lease/{id}/ack`."""
        if not self.tokens or route in OPEN:
            return
        presented = presented_token(authorization)
        roles = {role for role, tokens in self.tokens.items() if is_accepted(presented, tokens)}
        if not roles:
            raise UnauthorizedError(
                "the token is missing or wrong: send it as a bearer token, or as the password in the URL"
            )
        allowed: set[Role] = {"administrator", *ALLOWED.get(route, ())}
        if not roles & allowed:
            needed = " or ".join(f"the {role}'s (${VARIABLES[role]} of the server)" for role in sorted(allowed))
            raise ForbiddenError(f"{route} is not for the {' and '.join(sorted(roles))}'s token: send {needed}")


EVERYTHING_OPEN: Final = Access({})


def single_token(token: str, admin_token: str = "") -> Access:
    """One token for every role but the administrator's."""
    return Access({role: (token,) for role in VARIABLES if role != "administrator"} | {"administrator": (admin_token,)})
