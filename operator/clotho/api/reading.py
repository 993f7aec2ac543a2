"""Reads an object of ours as the API server sent it: of a status that another release wrote, what this one knows;
a broken spec is reported."""

import copy
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from clotho.api.metadata import Metadata
from clotho.api.nesting import PROBLEM, is_too_deep

MOST_UNKNOWN: Final = 100  # values in one status
Spec = TypeVar("Spec")
Status = TypeVar("Status")


class _Envelope(Struct, frozen=True):
    metadata: Metadata
    status: Any = None


def read(
    body: Mapping[str, Any], spec_type: type[Spec], status_type: type[Status]
) -> tuple[Metadata, Spec | str, Status]:
    """Metadata, spec and status; where the spec does not decode, what is wrong with it stands in its place."""
    envelope = msgspec.convert(body, _Envelope)
    status = _known(envelope.status or {}, status_type)
    if is_too_deep(body.get("spec")):
        return envelope.metadata, f"spec: {PROBLEM}", status
    try:
        return envelope.metadata, msgspec.convert(body.get("spec", {}), spec_type), status
    except msgspec.ValidationError as error:
        return envelope.metadata, _spell_out(str(error)), status


def _known(status: Any, kind: type[Status]) -> Status:
    """After a rollback, values of a newer release are left out one by one: a finished run must stay finished."""
    try:
        return msgspec.convert(status, kind)
    except msgspec.ValidationError as error:
        problem = str(error)
    rest = copy.deepcopy(status)
    for _ in range(MOST_UNKNOWN):
        if not _remove(rest, _steps_to(problem)):
            break
        try:
            return msgspec.convert(rest, kind)
        except msgspec.ValidationError as error:
            problem = str(error)
    return kind()  # it is derived again


def _steps_to(problem: str) -> list[str | int]:
    """`... - at `$.conditions[7].type`` -> conditions, 7, type; a mapping (`[...]`) as a whole."""
    place = problem.partition(" - at `$")[2].rstrip("`").partition("[...]")[0]
    return [int(index) if index else name for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", place)]


def _remove(found: Any, steps: list[str | int]) -> bool:
    """False where there is nothing to remove."""
    if not steps:
        return False
    for each in steps[:-1]:
        found = found[each]
    del found[steps[-1]]
    return True


def _spell_out(problem: str) -> str:
    """`Expected `int`, got `str` - at `$.training.steps`` -> `spec.training.steps: expected `int`, got `str``."""
    what, found, where = problem.partition(" - at `")
    path = f"spec{where.rstrip('`').removeprefix('$')}" if found else "spec"
    return f"{path}: {what[:1].lower()}{what[1:]}"
