"""Scored groups: what is accepted, how it is spelled again, and which field an error names."""

import json
import tracemalloc
from typing import Any

import pytest

from clotho_api_server.parsing import bounds
from clotho_api_server.parsing.groups import AT_A_GLANCE, Parser, ScoredData, parse_group, parse_groups
from clotho_api_server.refusals import InvalidError, TooLargeError
from clotho_contract.trajectory import ScoredGroup

GOOD: dict[str, Any] = {"tokens": [[1, 2, 3], [4, 5]], "masks": [[-100, 2, 3], [4, 5]], "scores": [1.0, 0]}


def body(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_a_stored_group_has_every_field_of_the_protocol() -> None:
    group = parse_group(body(env_id=3, generation_params={"policy_version": 7}), max_tokens=0)
    assert (group.env_id, group.size, group.policy_version) == (3, 2, 7)
    stored = json.loads(group.body)
    assert stored["tokens"] == GOOD["tokens"]
    assert stored["advantages"] is None
    assert set(stored) == {
        *("tokens", "masks", "scores", "advantages", "ref_logprobs", "messages", "generation_params"),
        *("inference_logprobs", "overrides", "group_overrides", "images", "env_id"),
        *("distill_token_ids", "distill_logprobs"),
    }


def test_numbers_are_not_rewritten() -> None:
    raw = b'{"tokens":[[1]],"masks":[[1]],"scores":[0.10000000000000000001],"inference_logprobs":[[-1.50e-07]]}'
    stored = parse_group(raw, 0).body
    assert b"0.10000000000000000001" in stored
    assert b"-1.50e-07" in stored


def test_a_field_given_twice_is_stored_once_as_it_was_checked() -> None:
    raw = b'{"tokens":[["evil"]],"masks":[[1]],"scores":[1],"tokens":[[1]],"surprise":5}'
    stored = parse_group(raw, 0).body
    assert b"evil" not in stored
    assert b"surprise" not in stored


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"scores": [1.0, float("nan")]}, "scores[1]"),
        ({"scores": [float("-inf"), 1.0]}, "scores[0]"),
        ({"scores": [1.0]}, "scores"),
        ({"scores": ["1", 2]}, "scores[0]"),
        ({"scores": [None, 2]}, "scores[0]"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [[], [1]]}, "tokens[0]"),
        ({"tokens": [[1, 2, 3], [4, 2.5]]}, "tokens[1][1]"),
        ({"tokens": [[1, 2, 3], [4, 2**40]]}, "tokens[1][1]"),
        ({"tokens": [1, 2]}, "tokens[0]"),
        ({"tokens": None}, "tokens"),
        ({"masks": [[1, 2, 3]]}, "masks"),
        ({"masks": [[1, 2, 3], [4]]}, "masks[1]"),
        ({"masks": None}, "masks"),
        ({"advantages": [[0.1, 0.2, 0.3], [0.4, "x"]]}, "advantages[1][1]"),
        ({"inference_logprobs": [[1.0, 0.0, 0.0], [0.0, float("nan")]]}, "inference_logprobs[1][1]"),
        ({"ref_logprobs": [[0.0, 0.0], [0.0, 0.0]]}, "ref_logprobs[0]"),
        ({"messages": [[{"role": "user"}]]}, "messages[0][0]"),
        ({"messages": "hello"}, "messages"),
        ({"generation_params": {"policy_version": -1}}, "generation_params.policy_version"),
        ({"generation_params": [1]}, "generation_params"),
        ({"overrides": [{}]}, "overrides"),
        ({"overrides": [{}, 1]}, "overrides[1]"),
        ({"group_overrides": []}, "group_overrides"),
        ({"env_id": "0"}, "env_id"),
        ({"env_id": -1}, "env_id"),
        ({"distill_token_ids": [[[1], [2]], [[3], [4]]]}, "distill_token_ids[0]"),
    ],
)
def test_an_error_names_the_field_and_the_index(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_group(body(**changes), max_tokens=0)
    assert caught.value.detail.startswith(f"{where}: ")


def test_sequences_longer_than_the_trainer_takes_are_refused() -> None:
    assert parse_group(body(), max_tokens=3).size == 2
    with pytest.raises(InvalidError, match=r"tokens\[0\]: 3 tokens are more than the trainer's limit of 2"):
        parse_group(body(), max_tokens=2)


def test_an_error_in_a_list_names_the_group() -> None:
    with pytest.raises(InvalidError) as caught:
        parse_groups(b"[" + body() + b"," + body(scores=[float("nan"), 1]) + b"]", 0)
    assert caught.value.location == (1, "scores", 0)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"NaN",
        b'{"tokens":',
        b"\xff\xfe",
        b'{"tokens":[[1]],"masks":[[1]],"scores":[1],"images":"\xff"}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[1],"messages":[[{"role":"\\ud800","content":""}]]}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[1],"images":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"tokens":[[1]],"masks":[[1]],"scores":[1],"images":NaN}',
    ],
)
def test_groups_that_a_trainer_cannot_decode_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidError):
        parse_group(raw, 0)


LONG_ROWS = {"tokens": [[7] * 30_000] * 2, "masks": [[-100] * 10_000 + [7] * 20_000] * 2}


def test_the_fast_path_parses_valid_long_rows() -> None:
    assert parse_group.glance(body(**LONG_ROWS), 0) == parse_group(body(**LONG_ROWS), 0)
    assert parse_groups.glance(b"[" + body(**LONG_ROWS) + b"]", 0) == [parse_group(body(**LONG_ROWS), 0)]


@pytest.mark.parametrize(
    "changes",
    [
        {"masks": [[-100] * 10_000 + [7] * 19_999] * 2},
        {"scores": [1, "x"]},
        {"messages": [[{"role": "user", "content": "x" * AT_A_GLANCE}]] * 2},
    ],
)
def test_the_fast_path_declines_invalid_and_slow_bodies(changes: dict[str, Any]) -> None:
    assert parse_group.glance(body(**{**LONG_ROWS, **changes}), 0) is None


def test_a_group_in_the_queue_has_the_fields_of_the_contract_in_the_same_order() -> None:
    assert ScoredData.__struct_fields__ == ScoredGroup.__struct_fields__


def test_empty_optional_lists_mean_absent() -> None:
    """Atropos' default `collect_trajectories` sends them."""
    names = ("advantages", "ref_logprobs", "inference_logprobs", "overrides", "distill_token_ids", "distill_logprobs")
    stored = json.loads(parse_group(body(**{name: [] for name in names}), max_tokens=0).body)
    assert [stored[name] for name in names] == [None] * len(names)


@pytest.mark.parametrize("parse", [parse_group, parse_groups], ids=["one", "list"])
@pytest.mark.parametrize("row", [b"[],", b"{},"])
def test_small_rows_without_number_take_no_memory(parse: Parser[Any], row: bytes) -> None:
    many = b"[" + row * 5_000_000 + b"[]]"
    sent = b'{"tokens":' + many + b',"masks":[],"scores":[]}' if parse is parse_group else many
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError, match="arrays and objects, the limit is 4000000"):
            parse(sent, 0)
        assert tracemalloc.get_traced_memory()[1] < 100 * 1024**2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["images", "messages", "overrides", "group_overrides", "generation_params"])
def test_a_field_that_is_decoded_as_a_whole_has_a_bounded_number_of_values(name: str) -> None:
    many = b'{"a":[' + b"0," * 1_100_000 + b"0]}"
    group = body(**{name: "HERE"}).replace(b'"HERE"', many)
    with pytest.raises(InvalidError, match=f"{name}: more than 1000000 values"):
        parse_group(group, max_tokens=0)


def test_a_row_that_must_be_decoded_has_a_bounded_number_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MOST_ENTRIES", 10_000)
    group = body(tokens="HERE").replace(b'"HERE"', b"[[" + b"0 ," * 10_001 + b"0]]")
    with pytest.raises(InvalidError, match=r"tokens\[0\]: more than 10000 values"):
        parse_group(group, max_tokens=0)


@pytest.mark.parametrize("depth", [65, 1_000, 100_000])
@pytest.mark.parametrize("name", [*ScoredData.__struct_fields__, "unknown"])
def test_deep_nesting_is_refused_in_every_field(name: str, depth: int) -> None:
    group = body(**{name: "HERE"}).replace(b'"HERE"', b"[" * depth + b"]" * depth)
    if name == "unknown" and depth < 1_000:
        assert parse_group(group, max_tokens=0).size == 2
    else:
        with pytest.raises(InvalidError):
            parse_group(group, max_tokens=0)
