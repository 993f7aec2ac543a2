"""Reads an object of ours as the API server sent it: a broken status is forgotten, a broken spec reported."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from clotho.api.metadata import Metadata
from clotho.api.nesting import PROBLEM, is_too_deep

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
    try:
        status = msgspec.convert(envelope.status or {}, status_type)
    except msgspec.ValidationError:
        status = status_type()  # it is derived again
    if is_too_deep(body.get("spec")):
        return envelope.metadata, f"spec: {PROBLEM}", status
    try:
        return envelope.metadata, msgspec.convert(body.get("spec", {}), spec_type), status
    except msgspec.ValidationError as error:
        return envelope.metadata, _spell_out(str(error)), status


def _spell_out(problem: str) -> str:
    """`Expected `int`, got `str` - at `$.training.steps`` -> `spec.training.steps: expected `int`, got `str``."""
    what, found, where = problem.partition(" - at `")
    path = f"spec{where.rstrip('`').removeprefix('$')}" if found else "spec"
    return f"{path}: {what[:1].lower()}{what[1:]}"
