"""What objects of other kinds have in common, as far as decisions read it."""

from datetime import datetime

from msgspec import Struct


class Shape(Struct, frozen=True, kw_only=True, rename="camel"):
    """The subset of a type that is read here."""


class Condition(Shape, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
