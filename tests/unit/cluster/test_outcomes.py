"""Every answer of the API server has a type that says whether trying again can help."""

import msgspec
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
def test_status_codes_have_error_types(code: int, reason: str, expected: type[Exception]) -> None:
    error = from_answer("create /pods", code, Status(message="because", reason=reason), None)
    assert type(error) is expected
    assert "create /pods: because" in str(error)


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [("7", None, 7.0), (None, StatusDetails(3.0), 3.0), (None, None, 1.0), ("soon", StatusDetails(None), 1.0)],
)
def test_retry_after_is_taken_from_header_or_details(
    header: str | None, details: StatusDetails | None, expected: float
) -> None:
    error = from_answer("get /x", 429, Status(details=details), header)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == expected


SKIPPED = "Invalid value: null: some validation rules were not checked because the object was invalid"
STEPS = "Invalid value: 0: spec.training.steps in body should be greater than or equal to 1"


def test_a_cause_without_a_field_is_left_out() -> None:
    causes = [{"field": "spec.training.steps", "message": STEPS}, {"field": "<nil>", "message": SKIPPED}]
    message = f'TrainingRun.clotho.dev "a" is invalid: [spec.training.steps: {STEPS}, <nil>: {SKIPPED}]'
    status = msgspec.convert({"message": message, "reason": "Invalid", "details": {"causes": causes}}, Status)
    error = from_answer("create run", 422, status, None)
    assert isinstance(error, outcomes.Invalid)
    assert error.message == f'TrainingRun.clotho.dev "a" is invalid: spec.training.steps: {STEPS}'


def test_other_messages_are_kept() -> None:
    causes = [{"field": "<nil>", "message": SKIPPED}]
    status = msgspec.convert({"message": "no", "reason": "Invalid", "details": {"causes": causes}}, Status)
    assert from_answer("create run", 422, status, None).message == "no"
    assert from_answer("create run", 422, Status(), None).message == "no message"
