"""The volume claim that holds a run's checkpoints."""

from __future__ import annotations

from typing import Any

from clotho.api.metadata import Metadata
from clotho.api.names import TRAINER
from clotho.cli.failure import Exit, Failure
from clotho.cluster.outcomes import NotFound
from clotho.render.names import claim_name
from clotho.workspace.objects import Workspace

Object = dict[str, Any]


def own_claim(run: Object) -> str:
    """The claim that was created for the run; empty where the user named one, or wanted none."""
    storage = run["spec"].get("storage", {})
    if storage.get("claimName") or storage.get("ephemeral"):
        return ""
    return claim_name(Metadata(name=run["metadata"]["name"], uid=run["metadata"]["uid"]), TRAINER)


def checkpoint_claim(run: Object) -> str:
    results = run.get("status", {}).get("results") or {}
    return results.get("claim") or run["spec"].get("storage", {}).get("claimName") or own_claim(run)


async def refuse_shared_claim(workspace: Workspace, run: Object) -> None:
    """Another run may have continued on it (`run restart`): its checkpoints would be deleted."""
    name, claim = run["metadata"]["name"], own_claim(run)
    users = [
        each["metadata"]["name"]
        for each in await workspace.all("TrainingRun")
        if claim and each["spec"].get("storage", {}).get("claimName") == claim
    ]
    if users:
        raise Failure(
            f"claim {claim} of run {name} is also used by {', '.join(users)}; nothing was deleted: delete "
            f"{'that run' if len(users) == 1 else 'those runs'} first, or keep the claim",
            Exit.REFUSED,
        )


async def delete_claim(workspace: Workspace, claim: str) -> bool:
    """Whether there was one."""
    try:
        await workspace.client.delete(workspace.core(f"persistentvolumeclaims/{claim}"), {}, Object)
    except NotFound:
        return False
    return True
