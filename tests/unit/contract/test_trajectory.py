"""Scored groups on the wire, and the rule that a batch consists of whole groups."""

import json
from typing import Any

import msgspec
import pytest

from clotho_contract.trajectory import Override, ScoredGroup, batch_size_problem, group_size_of

GROUP: dict[str, Any] = {"tokens": [[7, 1]], "masks": [[-100, 1]], "scores": [1.0]}


def test_only_fields_with_a_value_are_sent() -> None:
    sent = msgspec.json.encode(ScoredGroup(**GROUP, overrides=[Override(truncated=True)], env_id=3))
    assert json.loads(sent) == {**GROUP, "overrides": [{"truncated": True}], "env_id": 3}


def test_fields_that_are_not_interpreted_pass_through_whatever_they_hold() -> None:
    opaque = {"messages": [[{"role": "user", "content": [{"type": "text"}]}]], "images": "x", "ref_logprobs": [[0, 1]]}
    group = msgspec.json.decode(json.dumps({**GROUP, **opaque, "unknown": 1}), type=ScoredGroup)
    assert json.loads(msgspec.json.encode(group)) == {**GROUP, **opaque}


def test_an_empty_optional_list_means_absent() -> None:
    empty = {"advantages": [], "inference_logprobs": [], "overrides": []}
    group = msgspec.json.decode(json.dumps(GROUP | empty), type=ScoredGroup)
    assert (group.advantages, group.inference_logprobs, group.overrides) == (None, None, None)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({}, 4),
        ({"group_size": 16}, 16),
        ({"group_size": "16"}, 4),
        ({"group_size": True}, 4),
        ({"group_size": None}, 4),
    ],
)
def test_group_size_of_a_config(config: dict[str, Any], size: int) -> None:
    assert group_size_of(config) == size


@pytest.mark.parametrize(
    ("batch_size", "group_size", "nearest"),
    [(128, 16, None), (16, 16, None), (100, 16, "use 96 or 112"), (4, 16, "use 16"), (17, 16, "use 16 or 32")],
)
def test_a_batch_consists_of_whole_groups(batch_size: int, group_size: int, nearest: str | None) -> None:
    problem = batch_size_problem(batch_size, group_size, "gsm8k")
    prefix = f"training.batchSize: {batch_size} is not a multiple of group_size {group_size} (environment gsm8k); "
    assert problem == (None if nearest is None else prefix + nearest)
