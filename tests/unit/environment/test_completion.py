"""The three dialects of inference servers all become the same completions."""

import json

import pytest

from clotho_environment.sdk.completion import AnswerError, read_generate, read_openai

CHAT = {
    "choices": [
        {
            "message": {"role": "assistant", "content": "four"},
            "finish_reason": "length",
            "prompt_token_ids": [1, 2],
            "token_ids": [3, 4],
            "logprobs": {"content": [{"logprob": -0.1}, {"logprob": -0.2}]},
            "policy_version": 6,
        }
    ]
}
TEXT = {
    "prompt_token_ids": [1],
    "choices": [{"text": "ab", "finish_reason": "stop", "token_ids": [3], "logprobs": {"token_logprobs": [-0.5]}}],
}


def test_chat_answer_is_decoded():
    (completion,) = read_openai(json.dumps(CHAT).encode(), 5, want_tokens=True)
    assert (completion.text, completion.message["role"]) == ("four", "assistant")
    assert (completion.prompt_tokens, completion.tokens, completion.logprobs) == ((1, 2), (3, 4), (-0.1, -0.2))
    assert completion.policy_version == 6, "what the answer itself says is newer than the header"
    assert completion.is_truncated


def test_text_answer_takes_the_version_of_the_header():
    (completion,) = read_openai(json.dumps(TEXT).encode(), 5, want_tokens=True)
    assert completion.sequence.tokens == (1, 3)
    assert completion.sequence.trained == (False, True)
    assert (completion.policy_version, completion.is_truncated) == (5, False)


def test_generate_answers_one_or_many():
    one = {"text": "x", "meta_info": {"finish_reason": "stop", "output_token_logprobs": [[-0.5, 9, None]]}}
    two = {"text": "y", "meta_info": {"finish_reason": {"type": "length"}, "output_token_logprobs": []}}
    (single,) = read_generate(json.dumps(one).encode(), (4,), 1)
    assert (single.prompt_tokens, single.tokens, single.logprobs) == ((4,), (9,), (-0.5,))
    assert [c.finish_reason for c in read_generate(json.dumps([one, two]).encode(), (4,), 1)] == ["stop", "length"]


def test_generate_answers_may_have_flat_log_probabilities():
    answer = {"text": "x", "output_ids": [9, 8], "meta_info": {"output_logprobs": [-0.5, -0.25]}}
    (completion,) = read_generate(json.dumps(answer).encode(), (4,), 1)
    assert (completion.tokens, completion.logprobs) == ((9, 8), (-0.5, -0.25))
    answer["output_ids"] = [9]
    with pytest.raises(AnswerError, match="2 log-probabilities for 1 tokens"):
        read_generate(json.dumps(answer).encode(), (4,), 1)


def test_answers_without_tokens_are_accepted_only_without_training():
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": "hi"}}]}).encode()
    assert read_openai(body, None, want_tokens=False)[0].text == "hi"
    with pytest.raises(AnswerError, match="return_token_ids"):
        read_openai(body, None, want_tokens=True)


def test_log_probabilities_must_match_the_tokens():
    answer = json.loads(json.dumps(TEXT))
    answer["choices"][0]["logprobs"]["token_logprobs"] = [-0.5, -0.5]
    with pytest.raises(AnswerError):
        read_openai(json.dumps(answer).encode(), None, want_tokens=True)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"choices": 3}', b'{"text": 1}'])
def test_a_malformed_answer_is_an_error(body):
    with pytest.raises(AnswerError, match="cannot be read"):
        read_openai(body, None, want_tokens=True)
    with pytest.raises(AnswerError, match="cannot be read"):
        read_generate(body, (), None)
