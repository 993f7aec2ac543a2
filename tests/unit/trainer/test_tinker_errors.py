"""Which failures of the Tinker service are worth another attempt, with the SDK's own exceptions."""

from typing import Any

import httpx
import pytest

from clotho_trainer.failures import TrainerError
from clotho_trainer.training.tinker import _asked

tinker = pytest.importorskip("tinker")


KINDS = {400: "BadRequest", 401: "Authentication", 404: "NotFound", 422: "UnprocessableEntity", 429: "RateLimit"}


def refused(status: int) -> Exception:
    kind = getattr(tinker, KINDS.get(status, "InternalServer") + "Error")
    response = httpx.Response(status, request=httpx.Request("POST", "http://tinker/api"))
    error: Exception = kind("no", response=response, body=None)
    return error


def failed_later(category: str) -> Exception:
    """A request that was accepted, queued and then failed."""
    error: Exception = tinker.RequestFailedError("no", "1", tinker.types.RequestErrorCategory[category])
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (refused(400), "InvalidConfig"),
        (refused(404), "InvalidConfig"),
        (refused(422), "InvalidConfig"),
        (refused(401), "Unauthorized"),
        (refused(429), "DependencyUnavailable"),
        (refused(500), "DependencyUnavailable"),
        (failed_later("User"), "InvalidConfig"),
        (failed_later("Server"), "DependencyUnavailable"),
    ],
)
def test_a_request_refused_for_its_content_is_not_repeated(error: Exception, reason: str) -> None:
    def ask() -> Any:
        raise error

    with pytest.raises(TrainerError) as caught:
        _asked(tinker, ask)
    assert caught.value.reason == reason
