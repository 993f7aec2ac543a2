"""Outcomes of changes to the ledger."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from clotho_api_server.state.batching import EnvId

Outcome = Literal["received", "buffered", "stale"]


class Accepted(Struct, frozen=True):
    outcome: Outcome
    buffer_size: int = 0


class Receipt(Struct, frozen=True):
    """The answer to the sender of groups."""

    groups: int
    buffered: int = 0
    stale: int = 0
    buffer_size: int = 0


class Enqueued(Struct, frozen=True):
    receipt: Receipt
    accepted: Sequence[Accepted]  # of each group; empty when they had come before


class Lease(Struct, frozen=True):
    """A batch that is leased."""

    id: str
    batch: int
    groups: int
    sequences: int
    bytes: int


class Leased(Struct, frozen=True):
    lease: Lease
    step: int
    staleness: Sequence[int]  # of each group that says which policy made it


class Trained(Struct, frozen=True):
    step: int
    groups: dict[EnvId, int]  # empty when it had been acknowledged before
    dropped: dict[EnvId, int]  # groups too old for the policy that this step made
