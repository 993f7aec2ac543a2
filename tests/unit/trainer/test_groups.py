"""A group that cannot be trained is refused with a sentence; it never reaches the GPU."""

import json
from typing import Any

import pytest

from clotho_trainer.training.groups import InvalidGroupError, decode


def body(**changes: Any) -> bytes:
    fields: dict[str, Any] = {"tokens": [[1, 2, 3]], "masks": [[-100, 2, 3]], "scores": [1]}
    return json.dumps(fields | changes).encode()


def test_groups_of_atropos_clients_are_decoded() -> None:
    group = decode(
        body(
            inference_logprobs=[[1.0, -0.1, -0.2]],
            generation_params={"policy_version": 4, "temperature": 1.0},
            overrides=[{"set_advantage_to_zero": True}],
            advantages=None,
            messages=None,
            env_id=2,
            images=None,
        ),
        vocabulary=10,
    )
    assert group.policy_version == 4
    assert group.scores == [1.0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokens": []}, "it has no sequences"),
        ({"scores": [1.0, 2.0]}, "scores has 2 entries for 1 sequences"),
        ({"masks": [[-100, 2]]}, r"masks\[0\] has 2 entries for 3 tokens"),
        ({"inference_logprobs": [[1.0]]}, r"inference_logprobs\[0\] has 1 entries for 3 tokens"),
        ({"tokens": [[1, 2, 10]]}, "token ids outside 0..9: it was made with another tokenizer"),
        ({"tokens": [[1, -2, 3]]}, "token ids outside 0..9"),
        ({"tokens": [[1]], "masks": [[1]]}, "a prompt and a completion need two"),
        ({"tokens": "words"}, "Expected `array`"),
        ({"scores": ["good"]}, "Expected `float`"),
        ({"scores": [float("nan")]}, "invalid character"),
        ({"scores": [1e31]}, "a score is too large"),
        ({"advantages": [[0.0, -1e31, 0.0]]}, "sequence 0 has an advantage or log-probability too large"),
        ({"advantages": [[0.0, 1e31, 0.0]]}, "sequence 0 has an advantage or log-probability too large"),
        ({"inference_logprobs": [[0.0, -1e31, 0.0]]}, "sequence 0 has an advantage or log-probability too large"),
    ],
)
def test_bad_groups_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidGroupError, match=sentence):
        decode(body(**changes), vocabulary=10)
