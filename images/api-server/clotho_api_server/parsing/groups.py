"""Checks scored groups a row at a time. What is kept is the JSON that the client wrote, field by field."""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from clotho_api_server.parsing.bounds import check_entries, check_levels, check_rows, check_values
from clotho_api_server.parsing.decoding import decode
from clotho_api_server.parsing.rows import LongRows, apart, count_integers, count_numbers, cut
from clotho_api_server.refusals import InvalidError, Location
from clotho_contract.api_protocol import Step
from clotho_contract.trajectory import NULL

T = TypeVar("T")
AT_A_GLANCE: Final = 32 * 1024  # bytes that the decoder reads without delaying anybody
_INT32: Final = 2**31
_NOT_A_NUMBER: Final = re.compile(rb"-?\b(?:NaN|Infinity)\b")
_TOO_LARGE_A_NUMBER: Final = b"1e999"


class ScoredData(Struct, frozen=True):
    """The fields of a group, in the order in which batches spell them. Arrays are cut into rows, nothing is decoded."""

    tokens: list[Raw]
    masks: list[Raw]
    scores: Raw
    advantages: list[Raw] | None = None
    ref_logprobs: list[Raw] | None = None
    messages: Raw = NULL
    generation_params: Raw = NULL
    inference_logprobs: list[Raw] | None = None
    overrides: Raw = NULL
    group_overrides: Raw = NULL
    images: Raw = NULL
    env_id: Raw = NULL
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


class _RowKind(NamedTuple):
    """What a row must hold. The decoder judges any row; the glance, much faster, only those that are plainly right."""

    decoder: Decoder[list[Any]]
    glance: Callable[[Raw], int | None] = lambda _: None

    def length(self, row: Raw, at: Location) -> int:
        if count := self.glance(row):
            return count
        check_entries(row, at)
        return len(decode(row, self.decoder, at))


_Token = Annotated[int, Meta(ge=-_INT32, lt=_INT32)]
_Object = dict[str, Any]
_FIELDS: Final = Decoder(ScoredData)
_ROWS: Final = Decoder(list[Raw])
_TOKENS: Final = _RowKind(Decoder(list[_Token]), count_integers)
_NUMBERS: Final = _RowKind(Decoder(list[float]), count_numbers)
_PER_TOKEN: Final = {
    "advantages": _NUMBERS,
    "ref_logprobs": _NUMBERS,
    "inference_logprobs": _NUMBERS,
    "distill_token_ids": _RowKind(Decoder(list[list[_Token]])),
    "distill_logprobs": _RowKind(Decoder(list[list[float]])),
}
_ROW_FIELDS: Final = ("tokens", "masks", *_PER_TOKEN)
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


class Parser(Generic[T]):
    """Reads JSON text into T. A `max_tokens` of 0 or less accepts sequences of any length."""

    def __init__(self, read: Callable[[bytes, LongRows, int], T]) -> None:
        self._read = read

    def glance(self, body: bytes, max_tokens: int, longest_rest: int = AT_A_GLANCE) -> T | None:
        """In a time that hardly depends on what is in the body. None when it is wrong, or long beside its long rows."""
        rest, rows = cut(body)
        check_rows(rest)  # a long row has no other inside it
        if len(rest) <= longest_rest:
            with suppress(InvalidError):
                parsed = self._read(rest, rows, max_tokens)
                return None if rows else parsed
        return None

    def __call__(self, body: bytes, max_tokens: int) -> T:
        """A body that fails with its long rows cut out is decoded whole: that error has the field and the index."""
        parsed = self.glance(body, max_tokens, longest_rest=len(body))
        if parsed is not None:
            return parsed
        try:
            return self._read(body, {}, max_tokens)
        except InvalidError:
            if not _NOT_A_NUMBER.search(body):
                raise
            self._read(_NOT_A_NUMBER.sub(_TOO_LARGE_A_NUMBER, body), {}, max_tokens)  # Python clients write NaN
            raise


def _parse_groups(body: bytes, long_rows: LongRows, max_tokens: int) -> list[Group]:
    groups = []
    listed = decode(body, _ROWS)
    for index, raw in enumerate(listed):
        try:
            groups.append(_parse_group(bytes(raw), long_rows, max_tokens))
        except InvalidError as error:
            raise InvalidError((index, *error.location), error.problem) from error
    return groups


def _parse_group(body: bytes, long_rows: LongRows, max_tokens: int) -> Group:
    """Takes from `long_rows` what belongs to this group."""
    data = _complete(decode(body, _FIELDS), long_rows)
    lengths = _token_lengths(data.tokens, max_tokens)
    _check_count("scores", _NUMBERS.length(data.scores, ("scores",)), lengths)
    _check_masks(data.masks, data.tokens, lengths)
    for name, kind in _PER_TOKEN.items():
        if (rows := getattr(data, name)) is not None:
            _check_rows(name, rows, kind, lengths)
    others = {name: _optional(getattr(data, name), decoder, name) for name, decoder in _OTHERS.items()}
    if others["overrides"]:
        _check_count("overrides", len(others["overrides"]), lengths)
    else:
        data = replace(data, overrides=NULL)
    _optional(data.messages, _MESSAGES, "messages")
    params = _optional(data.generation_params, _PARAMS, "generation_params")
    return Group(
        env_id=_optional(data.env_id, _ENV_ID, "env_id"),
        size=len(lengths),
        policy_version=None if params is None else params.policy_version,
        body=_spell(data),
    )


def _complete(data: ScoredData, long_rows: LongRows) -> ScoredData:
    def whole(row: Raw) -> Raw:
        return long_rows.pop(bytes(row), row)

    fields = {name: [whole(row) for row in rows] for name in _ROW_FIELDS if (rows := getattr(data, name)) is not None}
    absent = {name: None for name in _PER_TOKEN if not fields.get(name)}  # Atropos' environments send [] for none
    return replace(data, scores=whole(data.scores), **(fields | absent))


def _token_lengths(rows: list[Raw], max_tokens: int) -> list[int]:
    lengths = []
    for index, row in enumerate(rows):
        length = _TOKENS.length(row, ("tokens", index))
        if length == 0:
            raise InvalidError(("tokens", index), "the sequence is empty")
        if 0 < max_tokens < length:
            raise InvalidError(("tokens", index), f"{length} tokens are more than the trainer's limit of {max_tokens}")
        lengths.append(length)
    if not lengths:
        raise InvalidError(("tokens",), "a group needs at least one sequence")
    return lengths


def _check_masks(masks: list[Raw], tokens: list[Raw], lengths: list[int]) -> None:
    _check_count("masks", len(masks), lengths)
    for index, (mask, row, expected) in enumerate(zip(masks, tokens, lengths, strict=True)):
        head, followers = apart(mask, row, expected)
        at = ("masks", index)
        _check_length(at, _TOKENS.length(head, at) + followers, expected)


def _check_rows(name: str, rows: list[Raw], kind: _RowKind, lengths: list[int]) -> None:
    _check_count(name, len(rows), lengths)
    for index, (row, expected) in enumerate(zip(rows, lengths, strict=True)):
        _check_length((name, index), kind.length(row, (name, index)), expected)


def _check_length(at: Location, length: int, expected: int) -> None:
    if length != expected:
        raise InvalidError(at, f"{length} entries for {expected} tokens")


def _check_count(name: str, count: int, lengths: list[int]) -> None:
    if count != len(lengths):
        raise InvalidError((name,), f"{count} entries for {len(lengths)} sequences of tokens")


def _optional(field: Raw, decoder: Decoder[T], name: str) -> T | None:
    if _is_null(field):
        return None
    check_values(field, (name,))
    value = decode(field, decoder, (name,))
    check_levels(value, (name,))
    return value


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


parse_group: Final = Parser(_parse_group)
parse_groups: Final = Parser(_parse_groups)
