"""Text that environments and policies wrote, for a page: bounded, nothing in it invisible or reordering a line."""

import re
from typing import Any, Final

LONGEST: Final = 20_000
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str, longest: int = LONGEST) -> str:
    """An escape becomes ␛, a right-to-left override ⟨U+202E⟩; tabs and line ends stay."""
    left_out = len(text) - longest
    note = f" … {left_out:,} more characters" if left_out > 0 else ""
    return _CONTROL.sub(_picture, text[:longest]) + note


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def shown(value: Any) -> Any:
    """Every text in a JSON value, names of fields included."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): shown(each) for key, each in value.items()}
    return [shown(each) for each in value] if isinstance(value, list | tuple) else value
