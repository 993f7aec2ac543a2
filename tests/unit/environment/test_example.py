"""The environment that people copy works as it stands."""

from pathlib import Path

import pytest

from clotho_environment import Completion
from clotho_environment.entries import find_entry
from clotho_environment.rollouts.items import ItemStream
from clotho_environment.sdk.environment import build
from clotho_environment.sdk.group import check_group

EXAMPLE = Path(__file__).parents[3] / "examples" / "own-environment" / "config-map" / "sums.py"


class Calculator:
    """A policy that can add, unless it is made to guess."""

    def __init__(self, guess: str = "") -> None:
        self.guess = guess

    async def chat(self, messages, n=4):
        question = messages[0]["content"].partition("?")[0]
        text = self.guess or f"so it is = {sum(map(int, question.split('+')))}"
        answer = Completion(text=text, prompt_tokens=(1,), tokens=(2,), logprobs=(-0.1,))
        return [answer] * n


@pytest.fixture
def sums():
    return build(find_entry(str(EXAMPLE)).kind, {"digits": 3, "evaluation_size": 5, "group_size": 4})


@pytest.mark.parametrize(("guess", "score"), [("", 1.0), ("= -1", 0.0), ("= 1999999", 0.1), ("no idea", 0.0)])
async def test_example_scores_right_close_and_wrong_answers(sums, guess, score):
    item = await ItemStream(sums).next()
    group = await sums.rollout(item, Calculator(guess))
    assert list(group.scores) == [score] * 4
    check_group(group, 4)


async def test_example_evaluation_reports_percent_correct(sums):
    assert await sums.evaluate(Calculator()) == {"percent_correct": 100.0}
