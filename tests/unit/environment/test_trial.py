"""What a test of an environment passes on: the end of what was printed, and never the key."""

import logging
from typing import Any

import msgspec
import pytest

from clotho_contract.termination import Sample, Termination
from clotho_environment.commands.trial import OUTPUT_LIMIT, SAMPLE_LIMIT, SCORES_KEPT, STEPS_KEPT, Tally

OURS = {"scores": [0.5, 1], "prompts": ["2 + 2 =", "2 + 2 ="], "texts": ["5", "4"], "messages": None}
TURNS = [{"role": "user", "content": "2 + 2 ="}, {"role": "assistant", "content": "5"}]
KEY = "sk-" + "0123456789" * 4


@pytest.mark.parametrize("after", range(OUTPUT_LIMIT - len(KEY) - 2, OUTPUT_LIMIT + 3, 7))
def test_no_part_of_the_key_is_left_where_the_output_is_cut(after: int) -> None:
    tally = Tally(lambda _: None, KEY)
    tally.emit(logging.makeLogRecord({"msg": "x" * 50 + KEY + "y" * after}))
    trial = tally.add_to(Termination(reason="EnvironmentFailed", message="no")).trial
    assert trial is not None
    assert len(trial.output) == min(OUTPUT_LIMIT, 50 + len("***") + after)
    assert not set(trial.output) & set("0123456789")


@pytest.mark.parametrize("line", [OURS, {"scores": [0.5], "messages": [TURNS]}])
def test_first_attempts_of_two_groups_are_samples(line: dict[str, Any]) -> None:
    tally = Tally(lambda _: None, KEY)
    for _ in range(3):
        tally.write(msgspec.json.encode(line))
    assert tally.trial.samples == (Sample(prompt="2 + 2 =", answer="5", score=0.5),) * 2


def test_scores_of_the_first_groups_are_kept() -> None:
    tally = Tally(lambda _: None, KEY)
    for _ in range(STEPS_KEPT + 1):
        tally.write(msgspec.json.encode({"scores": [1 / 3, *[0.0] * SCORES_KEPT]}))
    assert tally.trial.scores == ((0.333, *[0.0] * (SCORES_KEPT - 1)),) * STEPS_KEPT


@pytest.mark.parametrize("messages", [None, [], "text", [["text"]], [[TURNS[0]]], [[{"content": None}, {}]]])
def test_group_without_texts_is_counted_without_a_sample(messages: Any) -> None:
    tally = Tally(lambda _: None, KEY)
    tally.write(msgspec.json.encode({"scores": [1.0], "messages": messages}))
    assert (tally.trial.steps_tested, tally.trial.samples) == (1, ())


def test_key_and_long_texts_are_cut_from_samples() -> None:
    tally = Tally(lambda _: None, KEY)
    tally.write(msgspec.json.encode({"scores": [0], "prompts": [KEY + "?"], "texts": [KEY + "x" * 5000]}))
    (sample,) = tally.trial.samples
    assert sample.prompt == "***?"
    assert sample.answer == "***" + "x" * (SAMPLE_LIMIT - 3)
