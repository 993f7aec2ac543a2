"""`run clone` and `run restart`: a new run from the spec of an earlier one."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from clotho.authoring.changes import spec_problems
from clotho.cli.commands.runs import launch
from clotho.cli.commands.watching import RESTARTABLE
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.changes import changed, read_change
from clotho.cli.files.manifests import Manifest
from clotho.cli.session.claims import checkpoint_claim
from clotho.cli.session.hints import hint
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import output
from clotho.workspace.objects import Workspace

Object = dict[str, Any]
NAME_LIMIT: Final = 63


async def clone(options: argparse.Namespace, workspace: Workspace) -> int:
    """The same settings, from the base model: a claim with checkpoints is not shared."""
    run = await find_run(workspace, options.name)
    spec = plain_spec(run)
    if claim := spec.get("storage", {}).get("claimName"):
        spec = {**spec, "storage": {key: value for key, value in spec["storage"].items() if key != "claimName"}}
        output.note(f"storage.claimName is not copied; --set storage.claimName={claim} continues from its checkpoint")
    return await _launch(options, workspace, spec)


async def restart(options: argparse.Namespace, workspace: Workspace) -> int:
    """A new run on the claim of the old one: the trainer continues from the newest checkpoint there."""
    run = await find_run(workspace, options.name)
    status = run.get("status", {})
    phase, checkpoint = status.get("phase", "Pending"), status.get("checkpoint") or {}
    again = hint(options, "run", "clone", options.name)
    if phase not in RESTARTABLE:
        other = f"; to run it again: {again}" if phase == "Completed" else ""
        wanted = " or ".join(RESTARTABLE)
        raise Failure(f"run {options.name} is {phase}; only a {wanted} run can be restarted{other}", Exit.REFUSED)
    spec = plain_spec(run)
    storage = spec.get("storage", {})
    if not checkpoint.get("path") or storage.get("ephemeral"):
        raise Failure(f"run {options.name} has no checkpoint; to start from the beginning: {again}", Exit.REFUSED)
    claim = checkpoint_claim(run)
    notes = [f"continues from step {checkpoint['step']} on claim {claim}"]
    if not storage.get("retain", True) and not storage.get("claimName"):
        notes.append(f"claim {claim} belongs to run {options.name}: deleting that run deletes it")
    spec = {**spec, "storage": {**storage, "claimName": claim}}
    return await _launch(options, workspace, spec, notes, least_steps=checkpoint["step"])


def plain_spec(run: Object) -> Object:
    """Without what is about the life of that one run."""
    return {key: value for key, value in run["spec"].items() if key not in ("suspend", "stop")}


async def _launch(
    options: argparse.Namespace, workspace: Workspace, spec: Object, notes: Sequence[str] = (), least_steps: int = 0
) -> int:
    """The notes are printed once it is certain that the new run is valid."""
    taken = {each["metadata"]["name"] for each in await workspace.all("TrainingRun")}
    name = options.new_name or next_name(options.name, taken)
    spec = changed(spec, map(read_change, options.changes))
    if problems := spec_problems(name, spec):
        raise Failure(f"the new run is not valid: {'; '.join(problems)}", Exit.USAGE)
    if (steps := spec["training"]["steps"]) < least_steps:
        more = f"training.steps={least_steps + steps}"
        raise Failure(
            f"training.steps: {steps} is the total, and the checkpoint is of step {least_steps}; --set {more} trains "
            f"{steps} more",
            Exit.USAGE,
        )
    for note in notes:
        output.note(note)
    manifest: Manifest = {"metadata": {"name": name}, "spec": spec}
    return await launch(options, workspace, manifest)


def next_name(name: str, taken: Collection[str]) -> str:
    """`gsm8k-2` for `gsm8k`, `gsm8k-3` for `gsm8k-2`: the next number that is free."""
    stem, number = name, 1
    if match := re.fullmatch(r"(.+)-([2-9]|[1-9]\d{1,2})", name):
        stem, number = match[1], int(match[2])
    while True:
        number += 1
        candidate = f"{stem[: NAME_LIMIT - len(str(number)) - 1].rstrip('-')}-{number}"
        if candidate not in taken:
            return candidate
