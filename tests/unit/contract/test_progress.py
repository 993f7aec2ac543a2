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
