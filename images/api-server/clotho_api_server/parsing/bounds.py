"""How much a body may turn into: what is small as bytes can be large as Python objects."""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Raw

from clotho_api_server.refusals import InvalidError, Location, TooLargeError

MOST_ROWS: Final = 4_000_000  # arrays and objects in a body
MOST_VALUES: Final = 1_000_000  # in a field that is decoded as a whole
MOST_ENTRIES: Final = 10_000_000  # in a row; a sequence cannot have more tokens
MOST_LEVELS: Final = 64  # of arrays and objects inside each other


def check_rows(body: bytes) -> None:
    rows = body.count(b"[") + body.count(b"{")
    if rows > MOST_ROWS:
        raise TooLargeError(
            f"the body has {rows} arrays and objects, the limit is {MOST_ROWS}; send fewer groups at once"
        )


def check_entries(row: Raw, at: Location) -> None:
    _check_count(row, at, MOST_ENTRIES, b",")


def check_values(field: Raw, at: Location) -> None:
    _check_count(field, at, MOST_VALUES, b",", b"[", b"{")


def check_levels(value: Any, at: Location) -> None:
    """Of a decoded value. The trainer, too, must be able to decode what is stored."""
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for each in level for inner in _contents(each) if isinstance(inner, list | dict)]
        if not level:
            return
    raise InvalidError(at, f"nested too deeply: more than {MOST_LEVELS} levels")


def _contents(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _check_count(field: Raw, at: Location, limit: int, *signs: bytes) -> None:
    if len(memoryview(field)) <= limit:  # each value takes two bytes or more
        return
    text = bytes(field)
    if sum(map(text.count, signs)) > limit:
        raise InvalidError(at, f"more than {limit} values")
