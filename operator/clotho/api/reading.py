"""Reads an object of ours as the API server sent it: of a status that another release wrote, what this one knows;
a broken spec is reported.

Between the upgrade of the CRDs and that of the operator, specs have the new fields' defaults. A spec that was accepted
before and has not changed since is read without them; in a changed one, an unknown field may be what somebody wants.
"""

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from clotho.api.metadata import Metadata
from clotho.api.nesting import PROBLEM, is_too_deep
from clotho.api.status import REFUSED

MOST_UNKNOWN: Final = 100  # values in one spec or status
Known = TypeVar("Known")
Spec = TypeVar("Spec")
Status = TypeVar("Status")
Steps = list[str | int]  # from the object down to a value in it


class _Envelope(Struct, frozen=True):
    metadata: Metadata
    status: Any = None


def read(
    body: Mapping[str, Any], spec_type: type[Spec], status_type: type[Status]
) -> tuple[Metadata, Spec | str, Status]:
    """Metadata, spec and status; where the spec does not decode, what is wrong with it stands in its place."""
    envelope = msgspec.convert(body, _Envelope)
    try:
        status = _convert(envelope.status or {}, status_type, without=_steps_to)
    except msgspec.ValidationError:
        status = status_type()  # it is derived again
    if is_too_deep(body.get("spec")):
        return envelope.metadata, f"spec: {PROBLEM}", status
    removable = _unknown_field if _is_accepted(envelope) else _nothing
    try:
        return envelope.metadata, _convert(body.get("spec", {}), spec_type, without=removable), status
    except msgspec.ValidationError as error:
        return envelope.metadata, _spell_out(str(error)), status


def _is_accepted(envelope: _Envelope) -> bool:
    """By this release or an earlier one, as it is now."""
    if not isinstance(envelope.status, Mapping) or not isinstance(envelope.status.get("conditions"), list):
        return False
    is_current = envelope.status.get("observedGeneration") == envelope.metadata.generation
    return is_current and not any(
        isinstance(each, Mapping) and each.get("reason") == REFUSED for each in envelope.status["conditions"]
    )


def _convert(found: Any, kind: type[Known], without: Callable[[str], Steps]) -> Known:
    """What `without` makes of a problem is left out, one by one: a finished run must stay finished after a rollback."""
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        problem = error
    rest = copy.deepcopy(found)
    for _ in range(MOST_UNKNOWN):
        if not _remove(rest, without(str(problem))):
            break
        try:
            return msgspec.convert(rest, kind)
        except msgspec.ValidationError as error:
            problem = error
    raise problem


def _nothing(_: str) -> Steps:
    return []


def _unknown_field(problem: str) -> Steps:
    """`Object contains unknown field `x` - at `$.training`` -> training, x; nothing where the problem is another."""
    unknown = re.match(r"Object contains unknown field `([^`]+)`", problem)
    return [*_steps_to(problem), unknown[1]] if unknown and "[...]" not in problem else []


def _steps_to(problem: str) -> Steps:
    """`... - at `$.conditions[7].type`` -> conditions, 7, type; a mapping (`[...]`) as a whole."""
    place = problem.partition(" - at `$")[2].rstrip("`").partition("[...]")[0]
    return [int(index) if index else name for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", place)]


def _remove(found: Any, steps: Steps) -> bool:
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
