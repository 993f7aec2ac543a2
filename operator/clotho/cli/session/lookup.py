"""Finds a run by its name, or says which name was meant."""

from __future__ import annotations

from typing import Any

from clotho.cli.failure import unknown
from clotho.cli.session.connection import explain
from clotho.cluster.outcomes import NotFound
from clotho.workspace.objects import Workspace


async def find_run(workspace: Workspace, name: str) -> dict[str, Any]:
    try:
        return await workspace.get("TrainingRun", name)
    except NotFound as error:
        failure = explain(error)
        if "not installed" in str(failure):
            raise failure from error
        known = [run["metadata"]["name"] for run in await workspace.all("TrainingRun")]
        raise unknown("run", name, known, workspace.namespace, ", or find it with `clotho run list -A`") from None
