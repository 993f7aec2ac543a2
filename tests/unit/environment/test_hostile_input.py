"""Bodies from servers and child processes that are nested, long or wrong are errors of their sender, never crashes."""

import logging
from typing import Any

import msgspec
import pytest

from clotho_contract.untrusted import decode
from clotho_environment.atropos.child import LINE_LIMIT, ChildOutput
from clotho_environment.atropos.scored import Scored
from clotho_environment.atropos.versions import VersionMemory
from clotho_environment.commands.trial import Tally
from clotho_environment.pod.tokenizer import TokenizerError, unpack_tokenizer
from clotho_environment.rollouts.failures import summarize
from clotho_environment.sdk.completion import AnswerError, read_generate, read_openai
from clotho_environment.sdk.environment import Config, Environment, InvalidConfigError, build
from unit.environment.test_tokenizer import archive

DEEP = b"[" * 100_000
DEEP_OBJECT = b'{"a":' * 100_000


@pytest.mark.parametrize("body", [DEEP, DEEP_OBJECT, b"", b"\xff", b"{", b"NaN"])
@pytest.mark.parametrize("kind", [dict, list, Any])
def test_a_body_that_cannot_be_read_is_one_kind_of_error(body, kind):
    with pytest.raises(msgspec.MsgspecError):
        decode(body, kind)


@pytest.mark.parametrize(
    "body", [DEEP, DEEP_OBJECT, b'{"choices": ' + DEEP, b'{"text": "", "meta_info": ' + DEEP_OBJECT, b"[" + DEEP]
)
def test_deep_answers_of_an_inference_server(body):
    with pytest.raises(AnswerError):
        read_openai(body, None, want_tokens=True)
    with pytest.raises(AnswerError):
        read_generate(body, (), None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"masks": [[1]], "scores": [1], "messages": ' + DEEP,
        b'{"masks": [[99999999999999999999999999]], "scores": [1]}',
        b'{"masks": [[1]], "scores": [1], "generation_params": "greedy"}',
        b'{"masks": ' + DEEP,
    ],
)
def test_a_group_that_the_gateway_cannot_read(body):
    with pytest.raises(msgspec.MsgspecError):
        Scored.read(body, VersionMemory())


def test_a_long_line_of_a_child_is_cut(caplog):
    output = ChildOutput()
    with caplog.at_level(logging.INFO):
        output.add("ERROR " + "x" * LINE_LIMIT)
    assert len(output.last_line()) <= 4096
    assert max(len(record.getMessage()) for record in caplog.records) <= 4096


@pytest.mark.parametrize("line", [DEEP, b'{"scores": [NaN]}', b'{"scores": "all"}', b"\n"])
def test_a_line_without_scores_is_written_but_counts_for_nothing(line):
    written: list[bytes] = []
    tally = Tally(written.append, "")
    tally.write(line)
    assert written == [line]
    assert tally.trial.steps_tested == 0


def test_a_deep_tokenizer_config(tmp_path):
    with pytest.raises(TokenizerError, match="not a sound archive"):
        unpack_tokenizer(archive(**{"tokenizer_config.json": DEEP}), tmp_path / "tokenizer")


def test_a_deep_or_long_value_in_the_config_is_quoted_in_part():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    class Quiet(Environment[Config, int]):
        pass

    for value in (deep, "x" * 100_000, {str(i): i for i in range(10_000)}):
        with pytest.raises(InvalidConfigError) as refused:
            build(Quiet, {"group_size": value})
        assert len(str(refused.value)) < 500


def test_a_long_error_message_is_cut():
    assert len(summarize(ValueError("x" * 10**6))) < 3000
