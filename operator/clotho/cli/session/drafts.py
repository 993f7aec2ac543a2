"""A run or test in the making, from an Environment's name and `--set`; what is refused comes with what there is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clotho.authoring.draft import Draft, RefusedEditError
from clotho.cli.failure import Exit, Failure
from clotho.cli.terminal.screen import listed
from clotho.workspace.drafting import begin_draft
from clotho.workspace.objects import Workspace


async def edited_draft(workspace: Workspace, environment: str, changes: Iterable[tuple[str, Any]]) -> Draft:
    try:
        draft = await begin_draft(workspace, environment, {})
        for name, value in changes:
            draft = draft.edit(name, value)
    except RefusedEditError as refused:
        raise _explained(refused) from refused
    return draft


def _explained(refused: RefusedEditError) -> Failure:
    if "available" in refused.details:
        return Failure(f"{refused}{listed('environments', refused.details['available'])}", Exit.NOT_FOUND)
    if "available_fields" in refused.details:
        return Failure(f"{refused}{listed('fields', refused.details['available_fields'])}", Exit.REFUSED)
    return Failure(str(refused), Exit.REFUSED)
