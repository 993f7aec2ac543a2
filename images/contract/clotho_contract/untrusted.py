"""Decodes JSON that untrusted code may have written: however it is nested, it ends in an error that readers expect."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode(body: bytes | str | msgspec.Raw, kind: type[T]) -> T:
    """Raises msgspec.MsgspecError for anything but a `kind`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"JSON is not UTF-8: {error.reason}") from None
