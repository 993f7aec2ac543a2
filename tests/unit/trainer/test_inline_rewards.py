"""Rewards: how the user's functions are called, what they add up to, and how their mistakes are reported."""

from typing import Any

import pytest

from clotho_trainer.failures import TrainerError
from clotho_trainer.rollouts.inline.records import Record
from clotho_trainer.rollouts.inline.rewards import EnvironmentReward, GroupFunction, Measure, Outcome, score_group

RECORD = Record(
    name="line 3",
    messages=({"role": "user", "content": "2+2"},),
    expected="4",
    fields={"prompt": "2+2", "expected": "4", "level": 1},
)
OUTCOMES = [Outcome("4"), Outcome("5"), Outcome("")]


def test_reward_is_the_weighted_sum() -> None:
    rewards = [
        Measure("right", lambda output, expected: output == expected, kind="passFail"),
        Measure("length", len, weight=0.5),
        GroupFunction("first", lambda completions, **_: [1.0, None, 0.0], weight=2.0),
    ]
    scores = score_group(rewards, RECORD, OUTCOMES)
    assert scores.totals == [3.5, 0.5, 0.0]
    assert scores.parts == {"right": [1.0, 0.0, 0.0], "length": [1.0, 1.0, 0.0], "first": [1.0, None, 0.0]}


def test_a_measure_receives_the_parameters_it_declares() -> None:
    def curious(output: str, expected: str, record: dict[str, Any], environment: Any, turns: int) -> float:
        return record["level"] + environment + turns

    outcome = Outcome("4", environment=10, columns={"turns": 100})
    assert Measure("curious", curious).score(RECORD, [outcome]) == [111.0]


def test_the_expected_answer_may_be_left_out_for_something_named() -> None:
    def harder(output: str, record: dict[str, Any]) -> float:
        return len(output) + record["level"]

    assert Measure("harder", harder).score(RECORD, OUTCOMES) == [2.0, 2.0, 1.0]
    outcome = Outcome("4", messages=({"role": "assistant", "content": "4"},))
    assert Measure("turns", lambda output, messages: len(messages)).score(RECORD, [outcome]) == [1.0]


def test_a_group_function_gets_columns_as_lists() -> None:
    seen: dict[str, Any] = {}

    def note(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        seen.update(columns, prompts=prompts, completions=completions)
        return [0.0] * len(completions)

    GroupFunction("note", note).score(RECORD, OUTCOMES)
    assert seen["prompts"] == ["2+2"] * 3
    assert seen["completions"] == ["4", "5", ""]
    assert (seen["expected"], seen["level"]) == (["4"] * 3, [1] * 3)


def test_group_functions_receive_messages_for_conversations() -> None:
    talk = Record("record 1", RECORD.messages, None, {}, is_text=False)
    answer = ({"role": "assistant", "content": "4"},)
    seen = []
    GroupFunction("note", lambda completions, **_: seen.extend(completions) or [0.0]).score(
        talk, [Outcome("4", answer)]
    )
    assert seen == [list(answer)]


def test_an_environment_can_reward() -> None:
    class Game:
        def get_reward(self) -> float:
            return 0.25

    assert EnvironmentReward().score(RECORD, [Outcome("", environment=Game())]) == [0.25]


def raises(output: str, expected: str) -> float:
    raise KeyError("missing")


@pytest.mark.parametrize(
    ("reward", "reason", "words"),
    [
        (Measure("a", raises), "EnvironmentFailed", r"the reward a raised KeyError: 'missing' \(test_inline_rewards"),
        (Measure("a", lambda o, e: float("nan")), "InvalidConfig", "the reward a returned nan, for line 3 of the data"),
        (Measure("a", lambda o, e: "good"), "InvalidConfig", "the reward a returned 'good', which is not a number"),
        (Measure("a", lambda o, e: None), "InvalidConfig", "the reward a returned None, which is not a number"),
        (Measure("a", lambda o, e: 0.5, kind="passFail"), "InvalidConfig", "a pass/fail measure returns true or false"),
        (GroupFunction("a", lambda **_: [1.0]), "InvalidConfig", "the reward a returned 1 values for 3 completions"),
        (GroupFunction("a", lambda **_: 1.0), "InvalidConfig", "the reward a returned 1.0 for 3 completions"),
        (GroupFunction("a", lambda **_: [1, 2, float("inf")]), "InvalidConfig", "the reward a returned inf"),
    ],
)
def test_a_broken_reward_is_named_with_its_record(reward: Any, reason: str, words: str) -> None:
    with pytest.raises(TrainerError, match=words) as caught:
        reward.score(RECORD, OUTCOMES)
    assert caught.value.reason == reason
    assert "line 3" in caught.value.message
