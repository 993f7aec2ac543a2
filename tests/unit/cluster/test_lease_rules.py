"""Leader election: never two leaders at once, whatever the nodes' clocks show."""

from datetime import UTC, datetime

import pytest

from clotho.cluster.lease import LeaseSpec, LeaseTimes, may_take, next_record

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
TIMES = LeaseTimes(duration=30.0)


def held_by(holder: str, renewed: str = "2026-11-15T11:59:59.000000Z") -> LeaseSpec:
    return LeaseSpec(holder_identity=holder, lease_duration_seconds=30, renew_time=renewed, lease_transitions=4)


@pytest.mark.parametrize(
    ("record", "unchanged_for", "expected"),
    [
        (held_by("me"), 0.0, True),
        (held_by("other"), 0.0, False),
        (held_by("other"), 29.9, False),
        (held_by("other"), 30.0, True),
        (held_by("other", renewed="1999-01-01T00:00:00.000000Z"), 1.0, False),  # a clock far behind ours
        (held_by("other", renewed="2099-01-01T00:00:00.000000Z"), 31.0, True),  # a clock far ahead of ours
        (LeaseSpec(), 0.0, True),  # released
        (LeaseSpec(holder_identity=""), 0.0, True),
    ],
)
def test_lease_is_taken_only_when_released_or_expired(record: LeaseSpec, unchanged_for: float, expected: bool) -> None:
    assert may_take(record, "me", unchanged_for) is expected


def test_renewing_keeps_the_time_of_acquisition() -> None:
    first = next_record(None, "me", TIMES, NOW)
    again = next_record(first, "me", TIMES, datetime(2026, 11, 15, 13, 0, tzinfo=UTC))
    assert (again.acquire_time, again.lease_transitions) == (first.acquire_time, 0)
    assert again.renew_time != first.renew_time


def test_taking_over_counts_a_transition() -> None:
    taken = next_record(held_by("other"), "me", TIMES, NOW)
    assert (taken.holder_identity, taken.lease_transitions, taken.lease_duration_seconds) == ("me", 5, 30)
