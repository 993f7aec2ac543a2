"""`run delete`: the run, and on request the volume claim that outlives it."""

from __future__ import annotations

import argparse

from clotho.cli.failure import Exit
from clotho.cli.session.claims import delete_claim, own_claim, refuse_shared_claim
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import output
from clotho.workspace.objects import Workspace


async def delete(options: argparse.Namespace, workspace: Workspace) -> int:
    """A claim that the user named in storage.claimName is never deleted: other runs may use it."""
    run = await find_run(workspace, options.name)
    claim = own_claim(run)
    if options.with_claim:
        await refuse_shared_claim(workspace, run)
    await workspace.delete("TrainingRun", options.name)
    lines = [f"run {options.name} is deleted"]
    is_deleted = options.with_claim and bool(claim) and await delete_claim(workspace, claim)
    if is_deleted:
        lines.append(f"claim {claim} is deleted")
    elif options.with_claim:
        lines.append(f"claim {claim} is gone with the run" if claim else "the run has no claim of its own")
    elif claim and run["spec"].get("storage", {}).get("retain", True) and run.get("status", {}).get("checkpoint"):
        lines.append(f"claim {claim} is kept; to delete it: kubectl delete pvc {claim} -n {workspace.namespace}")
    data = {"run": options.name, "claim": claim or None, "claimDeleted": is_deleted}
    output.show(options.output, data, lines)
    return Exit.OK
