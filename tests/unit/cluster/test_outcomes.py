"""Every answer of the API server has a type that says whether trying again can help."""

import pytest

from clotho.cluster import outcomes
from clotho.cluster.outcomes import Status, StatusDetails, TooManyRequests, from_answer


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", outcomes.Invalid),
        (401, "Unauthorized", outcomes.Unauthorized),
        (403, "Forbidden", outcomes.Forbidden),
        (404, "NotFound", outcomes.NotFound),
        (409, "AlreadyExists", outcomes.AlreadyExists),
        (409, "Conflict", outcomes.Conflict),
        (410, "Gone", outcomes.Gone),
        (422, "Invalid", outcomes.Invalid),
        (429, "TooManyRequests", outcomes.TooManyRequests),
        (500, "InternalError", outcomes.Transient),
        (504, "Timeout", outcomes.Transient),
    ],
)
def test_kind(code: int, reason: str, expected: type[Exception]) -> None:
    error = from_answer("create /pods", code, Status(message="because", reason=reason), None)
    assert type(error) is expected
    assert "create /pods: because" in str(error)


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [("7", None, 7.0), (None, StatusDetails(3.0), 3.0), (None, None, 1.0), ("soon", StatusDetails(None), 1.0)],
)
def test_retry_after(header: str | None, details: StatusDetails | None, expected: float) -> None:
    error = from_answer("get /x", 429, Status(details=details), header)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == expected
