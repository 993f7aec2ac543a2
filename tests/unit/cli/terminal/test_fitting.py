"""Text fits the columns it is given, whatever letters it is made of."""

from __future__ import annotations

import pytest

from clotho.cli.terminal import fitting

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # one emoji of five code points, two columns wide
ROWS = [["letters", "letters-29a772e1-env-letters-0"], ["trainer", "letters-29a772e1-trainer"]]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("東京都", 6, "東京都"),
        ("東京都", 5, "東京…"),
        ("東京都", 4, "東…"),
        ("e\u0301te\u0301", 3, "e\u0301te\u0301"),
        (FAMILY, 2, FAMILY),
        (f"{FAMILY}{FAMILY}", 3, f"{FAMILY}…"),
        ("한국", 3, "한…"),
        ("\u2601\ufe0f!", 3, "\u2601\ufe0f!"),
    ],
)
def test_clip_counts_display_width(text: str, width: int, expected: str) -> None:
    assert fitting.clip(text, width) == expected


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("", 10, [""]),
        ("one two three", 7, ["one two", "three"]),
        ("one\ntwo\t three", fitting.UNLIMITED, ["one two three"]),
        ("a unbreakable", 5, ["a", "unbre", "akabl", "e"]),
        ("東京 都", 4, ["東京", "都"]),
        ("東京", 1, ["東", "京"]),
    ],
)
def test_wrap_counts_display_width(text: str, width: int, expected: list[str]) -> None:
    assert fitting.wrap(text, width) == expected


def test_widest_column_of_a_table_is_shortened_first() -> None:
    whole = fitting.table(["NAME", "POD"], ROWS)
    assert whole[1] == "letters  letters-29a772e1-env-letters-0"
    assert fitting.table(["NAME", "POD"], ROWS, len(whole[1])) == whole
    assert fitting.table(["NAME", "POD"], ROWS, 19) == ["NAME     POD", "letters  letters-2…", "trainer  letters-2…"]


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (4, ["NAME", "a", "b", "c"]),
        (3, ["NAME", "a", "  … 2 more"]),
        (2, ["NAME", "  … 3 more"]),
        (1, ["  … 3 more"]),
        (0, []),
        (-3, []),
    ],
)
def test_omitted_rows_are_counted(room: int, expected: list[str]) -> None:
    assert fitting.first_rows(["NAME", "a", "b", "c"], room) == expected


@pytest.mark.parametrize(
    ("width", "expected"), [(12, ["NAME", "A", "B"]), (9, ["NAME", "A"]), (6, ["NAME"]), (2, ["NAME"])]
)
def test_less_important_columns_are_left_out_first(width: int, expected: list[str]) -> None:
    header, rows = fitting.without_columns(["NAME", "A", "B"], [["x", "1", "2"]], width, ["B", "A"])
    assert header == expected
    assert rows == [["x", "1", "2"][: len(expected)]]
