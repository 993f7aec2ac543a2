"""What the operator may change in a running trainer: `PUT /steps` on the trainer's status port, with its token."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

STEPS_PATH: Final = "/steps"


class Steps(Struct, frozen=True, forbid_unknown_fields=True):
    steps: Annotated[int, Meta(ge=1, le=10_000_000)]


def encode(steps: int) -> bytes:
    return msgspec.json.encode(Steps(steps))


def decode(body: bytes) -> int:
    """Raises msgspec.MsgspecError for anything else."""
    return msgspec.json.decode(body, type=Steps).steps
