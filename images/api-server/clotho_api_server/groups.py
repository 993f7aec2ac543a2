"""Checks scored groups a row at a time. What is kept is the JSON that the client wrote, field by field."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from clotho_api_server.refusals import InvalidError
from clotho_api_server.wire import Step, decode

T = TypeVar("T")
_INT32: Final = 2**31
_NULL: Final = Raw(b"null")
_NOT_A_NUMBER: Final = re.compile(rb"-?\b(?:NaN|Infinity)\b")
_TOO_LARGE_A_NUMBER: Final = b"1e999"


class ScoredData(Struct, frozen=True):
    """The fields of a group, in the order in which batches spell them. Arrays are cut into rows, nothing is decoded."""

    tokens: list[Raw]
    masks: list[Raw]
    scores: Raw
    advantages: list[Raw] | None = None
    ref_logprobs: list[Raw] | None = None
    messages: Raw = _NULL
    generation_params: Raw = _NULL
    inference_logprobs: list[Raw] | None = None
    overrides: Raw = _NULL
    group_overrides: Raw = _NULL
    images: Raw = _NULL
    env_id: Raw = _NULL
    distill_token_ids: list[Raw] | None = None
    distill_logprobs: list[Raw] | None = None


class Group(Struct, frozen=True):
    """A group fit for the queue: `body` is JSON with every field present and none twice."""

    env_id: int | None
    size: int
    policy_version: int | None
    body: bytes


class _Message(Struct):
    role: Any
    content: Any


class _GenerationParams(Struct):
    policy_version: Step | None = None


_Token = Annotated[int, Meta(ge=-_INT32, lt=_INT32)]
_Object = dict[str, Any]
_FIELDS: Final = Decoder(ScoredData)
_ROWS: Final = Decoder(list[Raw])
_TOKENS: Final = Decoder(list[_Token])
_NUMBERS: Final = Decoder(list[float])
_PER_TOKEN: Final[dict[str, Decoder[Any]]] = {
    "masks": _TOKENS,
    "advantages": _NUMBERS,
    "ref_logprobs": _NUMBERS,
    "inference_logprobs": _NUMBERS,
    "distill_token_ids": Decoder(list[list[_Token]]),
    "distill_logprobs": Decoder(list[list[float]]),
}
_OTHERS: Final[dict[str, Decoder[Any]]] = {
    "messages": Decoder(list[list[_Object]]),
    "generation_params": Decoder(_Object),
    "overrides": Decoder(list[_Object]),
    "group_overrides": Decoder(_Object),
    "images": Decoder(),
}
_MESSAGES: Final = Decoder(list[list[_Message]])
_PARAMS: Final = Decoder(_GenerationParams)
_ENV_ID: Final = Decoder(Step)


def parse_group(body: bytes, max_tokens: int) -> Group:
    """`max_tokens` of 0 or less accepts sequences of any length."""
    return _pointing_at_nan(_parse_group, body, max_tokens)


def parse_groups(body: bytes, max_tokens: int) -> list[Group]:
    return _pointing_at_nan(_parse_groups, body, max_tokens)


def _pointing_at_nan(parse: Callable[[bytes, int], T], body: bytes, max_tokens: int) -> T:
    """Python clients write NaN, which is not JSON. As a number out of range it is found where it stands."""
    try:
        return parse(body, max_tokens)
    except InvalidError:
        if not _NOT_A_NUMBER.search(body):
            raise
        parse(_NOT_A_NUMBER.sub(_TOO_LARGE_A_NUMBER, body), max_tokens)
        raise


def _parse_groups(body: bytes, max_tokens: int) -> list[Group]:
    groups = []
    rows = decode(body, _ROWS)
    for index, raw in enumerate(rows):
        try:
            groups.append(_parse_group(bytes(raw), max_tokens))
        except InvalidError as error:
            raise InvalidError((index, *error.location), error.problem) from error
    return groups


def _parse_group(body: bytes, max_tokens: int) -> Group:
    data = decode(body, _FIELDS)
    lengths = _token_lengths(data.tokens, max_tokens)
    _check_count("scores", len(decode(data.scores, _NUMBERS, ("scores",))), lengths)
    for name, decoder in _PER_TOKEN.items():
        if (rows := getattr(data, name)) is not None:
            _check_rows(name, rows, decoder, lengths)
    others = {name: _optional(getattr(data, name), decoder, name) for name, decoder in _OTHERS.items()}
    if others["overrides"] is not None:
        _check_count("overrides", len(others["overrides"]), lengths)
    _optional(data.messages, _MESSAGES, "messages")
    params = _optional(data.generation_params, _PARAMS, "generation_params")
    return Group(
        env_id=_optional(data.env_id, _ENV_ID, "env_id"),
        size=len(lengths),
        policy_version=None if params is None else params.policy_version,
        body=_spell(data),
    )


def _token_lengths(rows: list[Raw], max_tokens: int) -> list[int]:
    lengths = []
    for index, row in enumerate(rows):
        length = len(decode(row, _TOKENS, ("tokens", index)))
        if length == 0:
            raise InvalidError(("tokens", index), "the sequence is empty")
        if 0 < max_tokens < length:
            raise InvalidError(("tokens", index), f"{length} tokens are more than the trainer's limit of {max_tokens}")
        lengths.append(length)
    if not lengths:
        raise InvalidError(("tokens",), "a group needs at least one sequence")
    return lengths


def _check_rows(name: str, rows: list[Raw], decoder: Decoder[Any], lengths: list[int]) -> None:
    _check_count(name, len(rows), lengths)
    for index, (row, expected) in enumerate(zip(rows, lengths, strict=True)):
        length = len(decode(row, decoder, (name, index)))
        if length != expected:
            raise InvalidError((name, index), f"{length} entries for {expected} tokens")


def _check_count(name: str, count: int, lengths: list[int]) -> None:
    if count != len(lengths):
        raise InvalidError((name,), f"{count} entries for {len(lengths)} sequences of tokens")


def _optional(field: Raw, decoder: Decoder[T], name: str) -> T | None:
    return None if _is_null(field) else decode(field, decoder, (name,))


def _is_null(field: Raw) -> bool:
    return bytes(memoryview(field)[:5]) == b"null"


def _spell(data: ScoredData) -> bytes:
    """One copy of the bytes, however large."""
    parts: list[bytes | Raw] = []
    for name in ScoredData.__struct_fields__:
        parts += (b',"', name.encode(), b'":', *_spell_field(getattr(data, name)))
    return b"".join([b'{"', *parts[1:], b"}"])


def _spell_field(value: Raw | list[Raw] | None) -> list[bytes | Raw]:
    if value is None:
        return [b"null"]
    if isinstance(value, Raw):
        return [value]
    separated = [part for row in value for part in (b",", row)]
    return [b"[", *separated[1:], b"]"]
