"""Decodes JSON from outside, with errors that name the field and the index."""

import re
from typing import TypeVar

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from clotho_api_server.refusals import InvalidError, Location

T = TypeVar("T")


def decode(body: bytes | Raw, decoder: Decoder[T], at: Location = ()) -> T:
    """Decode one JSON value; an error names the field and the index inside it."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(error, at) from error


def invalid(error: Exception, at: Location = ()) -> InvalidError:
    """msgspec ends its messages with a path such as `$.overrides[2]`; ours start with the whole path."""
    problem, _, path = str(error).partition(" - at `$")
    if isinstance(error, RecursionError):
        problem = "nested too deeply"
    elif problem == "Number out of range":
        problem = "not a finite number"
    return InvalidError((*at, *_path_parts(path)), problem[:1].lower() + problem[1:])


def _path_parts(path: str) -> Location:
    parts = re.findall(r"\[(\d+)\]|\.([^.\[`]+)", path)
    return tuple(int(index) if index else name for index, name in parts)
