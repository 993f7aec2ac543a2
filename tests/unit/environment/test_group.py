"""Invalid groups are refused with the field and the index; valid ones become Atropos' JSON."""

import json
import math
from dataclasses import replace

import pytest

from clotho_environment import Completion, Group, Sequence
from clotho_environment.sdk.group import InvalidGroupError, check_group, encode_group

GOOD = Completion(text="ab", prompt_tokens=(7, 8), tokens=(1, 2), logprobs=(-0.5, -0.25), policy_version=3)


def group(**changes):
    return replace(Group([GOOD, GOOD], [0.0, 1.0]), **changes)


def sequence(**changes):
    return replace(GOOD.sequence, **changes)


@pytest.mark.parametrize(
    ("candidate", "complaint"),
    [
        ({"tokens": []}, "rollout() returned a dict"),
        (group(attempts=[GOOD]), "attempts: 1 of them, but group_size is 2"),
        (group(scores=[1.0]), "scores: 1 of them for 2 attempts"),
        (group(scores=[1.0, math.nan]), "scores[1]: nan is not a finite number"),
        (group(scores=["best", 0.0]), "scores[0]: 'best' is not a finite number"),
        (group(attempts=[GOOD, "text"]), "attempts[1]: a str is not a Completion"),
        (group(attempts=[GOOD, Completion(text="")]), "attempts[1].trained: no token was written by the policy"),
        (group(attempts=[sequence(trained=(True,)), GOOD]), "attempts[0].trained: 1 of them for 4 tokens"),
        (group(attempts=[GOOD, sequence(logprobs=(0.0,) * 5)]), "attempts[1].logprobs: 5 of them for 4 tokens"),
        (group(attempts=[GOOD, sequence(tokens=(7, 8, 1, -2))]), "attempts[1].tokens[3]: -2 is not a token id"),
        (group(attempts=[GOOD, sequence(tokens=(7, 8, 1, 2.0))]), "attempts[1].tokens[3]: 2.0 is not a token id"),
        (group(attempts=[GOOD, sequence(trained=(True,) * 4)]), "attempts[1].trained[0]: the first token"),
        (group(attempts=[GOOD, sequence(logprobs=(0, 0, 0.7, 0))]), "attempts[1].logprobs[2]: 0.7 is not the log"),
        (group(attempts=[GOOD, sequence(logprobs=(0, 0, -math.inf, 0))]), "attempts[1].logprobs[2]: -inf"),
        (group(attempts=[GOOD, sequence(logprobs=(0.0, 0.0, -math.inf, -0.5))]), "attempts[1].logprobs[2]: -inf"),
        (group(attempts=[GOOD, sequence(logprobs=(0.0, 0.0, -0.5, math.nan))]), "attempts[1].logprobs[3]: nan"),
        (group(advantages=[[0.0] * 4]), "advantages: 1 of them for 2 attempts"),
        (group(advantages=[[0.0] * 4, [0.0] * 3]), "advantages[1]: 3 of them for 4 tokens"),
        (group(advantages=[[0.0] * 4, [0.0, 0.0, math.inf, 0.0]]), "advantages[1][2]: inf is not a finite number"),
        (group(messages=[[]]), "messages: 1 of them for 2 attempts"),
    ],
)
def test_an_invalid_group_is_refused_with_field_and_index(candidate, complaint):
    with pytest.raises(InvalidGroupError) as refusal:
        check_group(candidate, group_size=2)
    assert str(refusal.value).startswith(complaint)


def test_a_sound_group_becomes_scored_data():
    candidate = group(messages=[[{"role": "user", "content": "hi"}], []])
    body = json.loads(encode_group(candidate, check_group(candidate, 2), env_id=5))
    assert body == {
        "tokens": [[7, 8, 1, 2]] * 2,
        "masks": [[-100, -100, 1, 2]] * 2,
        "scores": [0.0, 1.0],
        "inference_logprobs": [[1.0, 1.0, -0.5, -0.25]] * 2,
        "generation_params": {"policy_version": 3},
        "messages": [[{"role": "user", "content": "hi"}], []],
        "env_id": 5,
    }


def test_tokens_of_an_environment_between_those_of_the_policy_are_masked():
    turns = Sequence(
        tokens=(7, 1, 2, 8, 9, 3), trained=(False, True, True, False, False, True), logprobs=(0, -0.1, -0.2, 0, 0, -0.3)
    )
    candidate = group(attempts=[turns, turns])
    body = json.loads(encode_group(candidate, check_group(candidate, 2), env_id=None))
    assert body["masks"] == [[-100, 1, 2, -100, -100, 3]] * 2
    assert body["inference_logprobs"] == [[1.0, -0.1, -0.2, 1.0, 1.0, -0.3]] * 2


def test_whatever_is_true_marks_a_token_of_the_policy():
    by_hand = Sequence(tokens=(7, 1, 2), trained=(None, 2, None), logprobs=(0.0, -0.1, 0.0))  # type: ignore[arg-type]
    candidate = group(attempts=[by_hand, by_hand])
    body = json.loads(encode_group(candidate, check_group(candidate, 2), env_id=None))
    assert body["masks"] == [[-100, 1, -100]] * 2


def test_a_group_has_its_oldest_policy_version_and_marks_truncated_attempts():
    cut = replace(GOOD, policy_version=2, finish_reason="length")
    candidate = group(attempts=[GOOD, cut])
    body = json.loads(encode_group(candidate, check_group(candidate, 2), env_id=None))
    assert body["generation_params"] == {"policy_version": 2}
    assert body["overrides"] == [{}, {"truncated": True}]
    assert "env_id" not in body


def test_token_level_advantages_pass_through():
    candidate = group(advantages=[[0.0, 0.0, 1.0, -1.0], [0.0] * 4])
    body = json.loads(encode_group(candidate, check_group(candidate, 2), env_id=1))
    assert body["advantages"] == [[0.0, 0.0, 1.0, -1.0], [0.0] * 4]


def test_a_sequence_made_by_hand_is_an_attempt():
    by_hand = Sequence(tokens=(1, 2), trained=(False, True), logprobs=(0.0, -1.0))
    assert check_group(Group([by_hand], [1]), 1) == [by_hand]
