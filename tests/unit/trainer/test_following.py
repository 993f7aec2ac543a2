"""When an inference replica may serve: it has a policy, the trainer answers, and the policy is not too old."""

import pytest

from clotho_trainer.inference.following import SILENCE_SECONDS, Position, unready_reason

NOW = 1000.0
CURRENT = Position(version=7, newest=7, heard_at=NOW)


@pytest.mark.parametrize(
    ("position", "max_staleness", "expected"),
    [
        (Position(), 0, "waiting for the policy from the trainer"),
        (
            Position(problem="Cannot connect"),
            0,
            "waiting for the policy from the trainer (Cannot connect)",
        ),
        (CURRENT, 0, None),
        (CURRENT, 1, None),
        (Position(version=5, newest=7, heard_at=NOW), 2, None),
        (Position(version=4, newest=7, heard_at=NOW), 2, "the policy is 3 steps old; training.maxStaleness is 2"),
        (Position(version=0, newest=999, heard_at=NOW), 0, None),
        (Position(version=7, newest=3, heard_at=NOW), 2, None),
        (Position(version=7, newest=7, heard_at=NOW - SILENCE_SECONDS), 0, None),
        (
            Position(version=7, newest=7, heard_at=NOW - SILENCE_SECONDS - 1, problem="Cannot connect"),
            0,
            "the trainer has not answered for 61 s (Cannot connect): the age of the policy is unknown",
        ),
    ],
    ids=[
        "no policy yet",
        "no policy and no trainer",
        "current",
        "current where age matters",
        "as old as allowed",
        "too old",
        "any age is allowed",
        "the trainer resumed from an older step",
        "a pause of the trainer",
        "a trainer that is silent",
    ],
)
def test_readiness_of_a_replica(position: Position, max_staleness: int, expected: str | None) -> None:
    assert unready_reason(position, max_staleness, NOW) == expected
