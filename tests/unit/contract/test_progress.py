"""What a trainer says must be readable to an operator of another release."""

from clotho_contract.progress import decode


def test_a_state_of_a_newer_trainer_is_no_reason_to_hear_nothing() -> None:
    said = decode(b'{"state": "dreaming", "step": 3, "totalSteps": 9, "depth": 2}')
    assert (said.state, said.step, said.total_steps) == ("dreaming", 3, 9)
