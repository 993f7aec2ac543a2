"""Finds a run or an environment by name; a name that does not exist is answered with the nearest one that does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Final

from clotho.cli.failure import Exit, Failure
from clotho.cli.session.connection import NotInstalled, explain, no_namespace
from clotho.cli.terminal.screen import listed
from clotho.cluster.outcomes import ApiError, NotFound, Transient
from clotho.workspace.objects import Workspace
from clotho_contract.nearest import nearest

RETRY_SECONDS: Final = 1.0
LIMIT_SECONDS: Final = 60.0  # without an answer from the API server


async def find_run(workspace: Workspace, name: str) -> dict[str, Any]:
    try:
        return await workspace.get("TrainingRun", name)
    except NotFound as error:
        failure = explain(error)
        if isinstance(failure, NotInstalled):
            raise failure from error
        known = [run["metadata"]["name"] for run in await workspace.all("TrainingRun")]
        raise await unknown(workspace, "run", name, known) from None


async def all_runs(workspace: Workspace) -> list[dict[str, Any]]:
    runs = await workspace.all("TrainingRun")
    if not runs:
        await require_namespace(workspace)
    return runs


async def find_run_patiently(workspace: Workspace, name: str) -> dict[str, Any]:
    """Retries while the API server is restarting."""
    give_up = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            return await find_run(workspace, name)
        except Transient:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(RETRY_SECONDS)


async def unknown(workspace: Workspace, kind: str, name: str, known: Iterable[str]) -> Failure:
    """Says which of three it is: a misspelt name, another namespace, or a namespace that does not exist."""
    names, namespace = sorted(known), workspace.namespace
    if not names and not await _exists(workspace):
        return no_namespace(namespace)
    if guess := nearest(name, names):
        return Failure(f"no {kind} {name!r} in namespace {namespace}{guess}", Exit.NOT_FOUND)
    if names:
        return Failure(f"no {kind} {name!r} in namespace {namespace}{listed(f'{kind}s', names)}", Exit.NOT_FOUND)
    elsewhere = "`clotho run list -A` lists those of all namespaces" if kind == "run" else "choose another with -n"
    return Failure(f"namespace {namespace} has no {kind}s; {elsewhere}", Exit.NOT_FOUND)


async def require_namespace(workspace: Workspace) -> None:
    """For a listing that is empty."""
    if not await _exists(workspace):
        raise no_namespace(workspace.namespace)


async def _exists(workspace: Workspace) -> bool:
    """Without permission to look, it counts as existing."""
    try:
        await workspace.client.get(f"/api/v1/namespaces/{workspace.namespace}", dict[str, Any])
    except NotFound:
        return False
    except ApiError:
        return True
    return True
