"""Finds a run or an environment by name; a name that does not exist is answered with the nearest one that does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clotho.cli.failure import Exit, Failure
from clotho.cli.session.connection import NotInstalled, explain
from clotho.cli.terminal.screen import listed
from clotho.cluster.outcomes import ApiError, NotFound
from clotho.workspace.objects import Workspace
from clotho_contract.nearest import nearest


async def find_run(workspace: Workspace, name: str) -> dict[str, Any]:
    try:
        return await workspace.get("TrainingRun", name)
    except NotFound as error:
        failure = explain(error)
        if isinstance(failure, NotInstalled):
            raise failure from error
        known = [run["metadata"]["name"] for run in await workspace.all("TrainingRun")]
        raise await unknown(workspace, "run", name, known) from None


async def unknown(workspace: Workspace, kind: str, name: str, known: Iterable[str]) -> Failure:
    """Says which of three it is: a misspelt name, another namespace, or a namespace that does not exist."""
    names, namespace = sorted(known), workspace.namespace
    if not names and not await _exists(workspace):
        listing = "`kubectl get namespaces` lists those that do"
        return Failure(f"namespace {namespace!r} does not exist; {listing}", Exit.NOT_FOUND)
    if guess := nearest(name, names):
        return Failure(f"no {kind} {name!r} in namespace {namespace}{guess}", Exit.NOT_FOUND)
    if names:
        return Failure(f"no {kind} {name!r} in namespace {namespace}{listed(f'{kind}s', names)}", Exit.NOT_FOUND)
    elsewhere = "`clotho run list -A` lists those of all namespaces" if kind == "run" else "choose another with -n"
    return Failure(f"namespace {namespace} has no {kind}s; {elsewhere}", Exit.NOT_FOUND)


async def _exists(workspace: Workspace) -> bool:
    """Without permission to look, it counts as existing."""
    try:
        await workspace.client.get(f"/api/v1/namespaces/{workspace.namespace}", dict[str, Any])
    except NotFound:
        return False
    except ApiError:
        return True
    return True
