"""Text of environments and policies, as a page shows it."""

import pytest

from clotho.web.untrusted import LONGEST, shown, visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttext\nwith lines", "plain\ttext\nwith lines"),
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("photo\u202egnp.exe", "photo⟨U+202E⟩gnp.exe"),
        ("zero\u200bwidth\ufeff", "zero⟨U+200B⟩width⟨U+FEFF⟩"),
        ("\x00\r\x7f\x9b", "␀␍␡⟨U+009B⟩"),
        ("half \ud800", "half ⟨U+D800⟩"),
        ("مرحبا 👩\u200d🔬 日本語", "مرحبا 👩\u200d🔬 日本語"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
    ],
)
def test_what_is_invisible_or_reorders_text_is_made_visible(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_long_text_is_cut_and_the_rest_is_counted() -> None:
    assert visible("x" * 10_000_000) == "x" * LONGEST + " … 9,980,000 more characters"


def test_every_text_of_a_value_is_made_visible() -> None:
    assert shown({"\x1b": [1, None, ("\u202e",), {"a": "\x00"}]}) == {"␛": [1, None, ["⟨U+202E⟩"], {"a": "␀"}]}
