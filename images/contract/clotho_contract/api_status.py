"""What the API server answers on `/status`: Atropos' two fields and what the operator wants to know besides."""

import msgspec
from msgspec import Struct


class ConnectedEnvironment(Struct, frozen=True, kw_only=True):
    id: int
    name: str
    seconds_since_heard: float
    queued_groups: int


class ApiStatus(Struct, frozen=True, kw_only=True):
    """Snake case, because the two fields of Atropos are. Unknown fields are ignored, absent ones have defaults."""

    current_step: int
    queue_size: int  # groups that wait for the trainer
    queue_bytes: int = 0
    queue_sequences: int = 0
    full: bool = False  # environments are being told to slow down
    registered: bool = False  # a trainer has registered
    leased_batches: int = 0
    last_lease_time: str | None = None  # RFC 3339; since the server started
    environments: tuple[ConnectedEnvironment, ...] = ()


def encode(status: ApiStatus) -> bytes:
    return msgspec.json.encode(status)


def decode(body: bytes) -> ApiStatus:
    return msgspec.json.decode(body, type=ApiStatus)
