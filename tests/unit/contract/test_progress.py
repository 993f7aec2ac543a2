"""Progress of a trainer can be decoded by an operator of another release."""

import msgspec
import pytest

from clotho_contract.progress import decode


def test_an_unknown_state_of_a_newer_trainer_is_decoded() -> None:
    found = decode(b'{"state": "dreaming", "step": 3, "totalSteps": 9, "depth": 2}')
    assert (found.state, found.step, found.total_steps) == ("dreaming", 3, 9)


@pytest.mark.parametrize("step", [b"-1", b"1" + b"0" * 400, b"1.5"])
def test_numbers_that_count_nothing_are_refused(step: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(b'{"state": "training", "step": %s, "totalSteps": 9}' % step)


@pytest.mark.parametrize(
    ("share", "expected"), [(b"0", 0.0), (b"0.25", 0.25), (b"1", 1.0), (b"1.5", None), (b"-1", None)]
)
def test_shares_are_from_0_to_1(share: bytes, expected: float | None) -> None:
    found = decode(
        b'{"state": "training", "step": 1, "totalSteps": 9, "waitingShare": %s, "occupancy": %s}' % (share, share)
    )
    assert (found.waiting_share, found.occupancy) == (expected, expected)
