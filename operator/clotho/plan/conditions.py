"""Conditions as kstatus reads them. Every condition of every kind is built here."""

from collections.abc import Iterable
from datetime import datetime

from clotho.api.status import REFUSED, Condition, ConditionType, Truth

Wanted = tuple[ConditionType, Truth, str, str]  # type, status, reason, message


def conditions(
    wanted: Iterable[Wanted], before: Iterable[Condition], moment: datetime, generation: int
) -> tuple[Condition, ...]:
    """`lastTransitionTime` is kept as long as the status stays the same."""
    known = {each.type: each for each in before}

    def since(kind: ConditionType, truth: Truth) -> datetime:
        old = known.get(kind)
        return old.last_transition_time if old is not None and old.status == truth else moment

    return tuple(
        Condition(
            type=kind,
            status=truth,
            reason=reason,
            message=message,
            last_transition_time=since(kind, truth),
            observed_generation=generation,
        )
        for kind, truth, reason, message in wanted
    )


def accepted() -> Wanted:
    return "Accepted", "True", "Valid", ""


def refused(message: str) -> Wanted:
    return "Accepted", "False", REFUSED, message


def ready(reason: str, message: str) -> list[Wanted]:
    return [("Ready", "True", reason, message)]


def reconciling(reason: str, message: str) -> list[Wanted]:
    return [("Ready", "False", reason, message), ("Reconciling", "True", reason, message)]


def stalled(reason: str, message: str) -> list[Wanted]:
    """Only a change from outside can help."""
    return [("Ready", "False", reason, message), ("Stalled", "True", reason, message)]
