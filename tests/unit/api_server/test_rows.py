"""Counting a long row without decoding it agrees with the decoder."""

import json
from typing import Annotated, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Meta, MsgspecError, Raw
from msgspec.json import Decoder

from clotho_api_server.parsing.groups import parse_group
from clotho_api_server.parsing.rows import SHORT, WORTH_A_LOOK, apart, count_integers, count_numbers, cut
from clotho_api_server.refusals import InvalidError

INTEGERS = Decoder(list[Annotated[int, Meta(ge=-(2**31), lt=2**31)]])
NUMBERS = Decoder(list[float])
LONG = SHORT // 2
WORTH = WORTH_A_LOOK // 2
SEPARATORS = st.sampled_from([",", ", ", " , ", ",\n", ",,", " ", "", ",-", ", -"])
INTEGER_TEXTS = st.one_of(
    st.integers(-(2**31), 2**31 - 1).map(str),
    st.sampled_from(["0", "-0", "-100", "150000", "999999999", "1000000000", "2147483648", "-2147483649"]),
    st.sampled_from(
        ["00", "01", "-01", "-", "--1", "1-", "1.0", "1e5", "+1", "null", "true", '"1"', "[1]", "{}", "1 1"]
    ),
)
NUMBER_TEXTS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-20, 0).map(repr),
    st.integers().map(str),
    st.sampled_from(["1e-07", "-0.0", "1E-5", "1e5", "1e+5", "1e400", "1e-400", "0.1e-7", "9" * 400, "0." + "1" * 400]),
    st.sampled_from(
        ["1.", ".5", "1.2.3", "1e-", "1e-5e-5", "1e-5.2", "01.5", "NaN", "-Infinity", "1-2", '"e-"', "null"]
    ),
    st.sampled_from(["false", "[1.0]", "--1.0", "-", "1..2", "1 .5", "e-5", "1e--5"]),
)


@st.composite
def long_rows(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> bytes:
    """Mostly right: a plain row with a few odd texts and separators anywhere, the ends included."""
    separator = draw(st.sampled_from([",", ", "]))
    numbers = ["1", "-100", "7"] * (WORTH // 3)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from([0, 1, LONG, len(numbers) - 2, len(numbers) - 1]))
        numbers[place] = draw(texts)
    where = draw(st.integers(1, len(numbers) - 1))
    odd = draw(st.one_of(st.just(separator), SEPARATORS))
    text = separator.join(numbers[:where]) + odd + separator.join(numbers[where:])
    padding = draw(st.sampled_from(["", "", "", " ", ",", "-", "\t"]))
    return f"[{text}{padding}]".encode() if draw(st.booleans()) else f"[{padding}{text}]".encode()


def decoded_length(row: bytes, decoder: Decoder[list[Any]]) -> int | None:
    try:
        return len(decoder.decode(row))
    except MsgspecError:
        return None


@settings(max_examples=600, deadline=None)
@given(long_rows(INTEGER_TEXTS))
@example(b"[05" + b", 1" * WORTH + b"]")
@example(b'"' + b"1," * WORTH + b'1"')
def test_counting_integers_agrees_with_the_decoder(row: bytes) -> None:
    count = count_integers(Raw(row))
    assert count is None or count == decoded_length(row, INTEGERS)


@settings(max_examples=600, deadline=None)
@given(long_rows(NUMBER_TEXTS))
@example(b"[" + b" " * WORTH_A_LOOK + b"]")
@example(b"[1e-" + b", 1" * WORTH + b"]")
def test_counting_numbers_agrees_with_the_decoder(row: bytes) -> None:
    count = count_numbers(Raw(row))
    assert count is None or count == decoded_length(row, NUMBERS)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_usual_rows_are_counted_without_decoding(separators: tuple[str, str]) -> None:
    tokens = [*range(-100, 5000), 150_000, 9_999_999]
    logprobs = [1.0, *(-1 / n for n in range(1, 9000)), -3.2e-07]
    assert count_integers(Raw(json.dumps(tokens, separators=separators).encode())) == len(tokens)
    assert count_numbers(Raw(json.dumps(logprobs, separators=separators).encode())) == len(logprobs)


@st.composite
def sequences_and_masks(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Mostly a mask of the sequence; some entries of it are odd, and some differ without being masked."""
    tokens = [str(number) for number in draw(st.lists(st.integers(-5, 2**31 - 1), min_size=1, max_size=12))]
    masks = ["-100" if draw(st.booleans()) else token for token in tokens] + draw(st.lists(INTEGER_TEXTS, max_size=1))
    if draw(st.booleans()):
        masks[draw(st.integers(0, len(masks) - 1))] = draw(INTEGER_TEXTS)
    separator = draw(st.sampled_from([",", ", ", " , "]))
    return f"[{separator.join(tokens)}]".encode(), f"[{draw(SEPARATORS)}{separator.join(masks)}]".encode()


@settings(max_examples=600, deadline=None)
@given(sequences_and_masks())
def test_a_mask_is_as_long_as_its_beginning_and_what_it_shares(pair: tuple[bytes, bytes]) -> None:
    tokens, mask = pair
    head, followers = apart(Raw(mask), Raw(tokens), len(INTEGERS.decode(tokens)))
    length = decoded_length(bytes(head), INTEGERS)
    assert (None if length is None else length + followers) == decoded_length(mask, INTEGERS)


def test_only_the_prefix_of_a_mask_is_decoded() -> None:
    tokens, masks = [5, 6, 7, 8], [-100, -100, 7, 8]
    assert apart(Raw(json.dumps(masks).encode()), Raw(json.dumps(tokens).encode()), 4) == (Raw(b"[-100, -100]"), 2)
    assert apart(Raw(json.dumps(tokens).encode()), Raw(json.dumps(tokens).encode()), 4) == (Raw(b"[5]"), 3)


def test_long_rows_are_cut_out_and_nothing_else() -> None:
    row = b"[" + b"1, " * LONG + b"1]"
    body = b'{"a": [' + row + b", [5], " + row + b'], "b": ["' + b"x" * SHORT + b'"], "c": []}'
    rest, rows = cut(body)
    assert [bytes(cut_out) for cut_out in rows.values()] == [row, row]
    for stand_in, cut_out in rows.items():
        assert rest.count(stand_in) == 1
        rest = rest.replace(stand_in, bytes(cut_out))
    assert rest == body


NUMBER_LIST = "[" + ", ".join(["7"] * LONG) + "]"


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": [[{"role": "user", "content": f"add up {NUMBER_LIST}"}]] * 2},
        {"images": [[7] * LONG]},
        {"overrides": [{"a": [7] * LONG}, {}]},
        {"distill_token_ids": [[[7] * LONG] * LONG] * 2},
    ],
)
def test_long_arrays_elsewhere_are_kept_as_they_are(changes: dict[str, Any]) -> None:
    row = [3] * LONG
    group = {"tokens": [row, row], "masks": [row, row], "scores": [1, 0], **changes}
    stored = json.loads(parse_group(json.dumps(group).encode(), 0).body)
    assert {name: stored[name] for name in group} == group


def test_long_scores_and_repeated_fields_are_parsed() -> None:
    rows = [[1]] * LONG
    body = json.dumps({"tokens": rows, "masks": rows, "scores": [0.5] * LONG})
    assert parse_group(body.encode(), 0).size == LONG
    twice = body[:-1] + f', "scores": {json.dumps([0.25] * LONG)}}}'
    assert json.loads(parse_group(twice.encode(), 0).body)["scores"] == [0.25] * LONG


@pytest.mark.parametrize("place", [0, 1, LONG, 2 * LONG - 1])
@pytest.mark.parametrize("odd", [0.5, "x", None, 2**31, [1]])
def test_an_error_in_a_long_row_is_named(odd: Any, place: int) -> None:
    row = [1] * (2 * LONG)
    masks = [list(row), list(row)]
    masks[1][place] = odd
    with pytest.raises(InvalidError) as caught:
        parse_group(json.dumps({"tokens": [row, row], "masks": masks, "scores": [1, 0]}).encode(), 0)
    assert caught.value.location == ("masks", 1, place)


def test_a_placeholder_in_the_input_is_refused() -> None:
    row = [1] * LONG
    group = json.dumps({"tokens": [row, row], "masks": [row, row], "scores": [1, 0]})
    for smuggled in (group.replace("[1, 0]", "[1e100000]"), group.replace('"tokens": [[', '"tokens": [[1e100001], [')):
        with pytest.raises(InvalidError):
            parse_group(smuggled.encode(), 0)
