"""A draft of a run or test, from an Environment's name and `--set`; every refused change is reported at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clotho.authoring.changes import edited
from clotho.authoring.draft import Draft, RefusedEditError
from clotho.cli.failure import Exit, Failure
from clotho.cli.session.lookup import unknown
from clotho.cli.terminal.screen import listed
from clotho.workspace.drafting import begin_draft
from clotho.workspace.objects import Workspace


async def edited_draft(
    workspace: Workspace, environment: str, changes: Iterable[tuple[str, Any]]
) -> tuple[Draft, list[RefusedEditError]]:
    """The draft with the changes that were accepted, and the refusals of the others."""
    try:
        draft = await begin_draft(workspace, environment, {})
    except RefusedEditError as refused:
        if "available" in refused.details:
            raise await unknown(workspace, "environment", environment, refused.details["available"]) from refused
        raise Failure(str(refused), Exit.REFUSED) from refused
    refusals = []
    for name, value in changes:
        try:
            draft = edited(draft, name, value)
        except RefusedEditError as refused:
            refusals.append(refused)
    return draft, refusals


def refuse(problems: Iterable[str], refusals: Iterable[RefusedEditError]) -> None:
    """Raises one failure with everything that is wrong, a line each; the known fields once, at the end."""
    refused = list(refusals)
    lines = [*map(str, refused), *problems]
    if not lines:
        return
    unguessed = [each.details for each in refused if not each.has_guess]
    fields = next((details["available_fields"] for details in unguessed if "available_fields" in details), None)
    text = lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} problems:", *lines])
    raise Failure(text + (listed("fields", fields) if fields else ""), Exit.REFUSED if refused else Exit.USAGE)
