"""What a test of an environment passes on: the end of what was printed, and never the key."""

import logging

import pytest

from clotho_contract.termination import Termination
from clotho_environment.commands.trial import OUTPUT_LIMIT, Tally

KEY = "sk-" + "0123456789" * 4


@pytest.mark.parametrize("after", range(OUTPUT_LIMIT - len(KEY) - 2, OUTPUT_LIMIT + 3, 7))
def test_no_part_of_the_key_is_left_where_the_output_is_cut(after: int) -> None:
    tally = Tally(lambda _: None, KEY)
    tally.emit(logging.makeLogRecord({"msg": "x" * 50 + KEY + "y" * after}))
    trial = tally.add_to(Termination(reason="EnvironmentFailed", message="no")).trial
    assert trial is not None
    assert len(trial.output) == min(OUTPUT_LIMIT, 50 + len("***") + after)
    assert not set(trial.output) & set("0123456789")
