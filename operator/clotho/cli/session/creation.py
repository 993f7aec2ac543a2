"""Creates a run with its ConfigMaps, and suggests the next command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from clotho.cli.failure import Exit, Failure
from clotho.cli.files.manifests import Manifest
from clotho.cli.session.hints import hint
from clotho.cluster.client import Object
from clotho.cluster.outcomes import AlreadyExists
from clotho.workspace.objects import Workspace


async def create_run(
    workspace: Workspace, run: Manifest, maps: Sequence[Manifest] = (), *, is_dry_run: bool = False
) -> Object:
    """A refused run leaves nothing behind: it is validated on the API server before its ConfigMaps are created."""
    made = await _create(workspace, run, is_dry_run=is_dry_run or bool(maps))
    for each in maps:
        await _create_map(workspace, each, is_dry_run=is_dry_run)
    return await _create(workspace, run) if maps and not is_dry_run else made


async def _create(workspace: Workspace, run: Manifest, *, is_dry_run: bool = False) -> Object:
    metadata = run["metadata"]
    name, labelled = metadata["name"], {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
    try:
        return await workspace.create("TrainingRun", name, run["spec"], labelled=labelled, is_dry_run=is_dry_run)
    except AlreadyExists as error:
        raise Failure(
            f"run {name} already exists in namespace {workspace.namespace}; choose another --name, or delete it: "
            f"clotho run delete {name} -n {workspace.namespace}",
            Exit.REFUSED,
        ) from error


async def _create_map(workspace: Workspace, manifest: Manifest, *, is_dry_run: bool) -> None:
    """An existing one is used if it has the same data; it is never changed, because a run may be using it."""
    name, namespace = manifest["metadata"]["name"], workspace.namespace
    if manifest["metadata"].get("namespace", namespace) != namespace:
        raise Failure(f"ConfigMap {name} is for another namespace than {namespace}, the run's", Exit.USAGE)
    params = {"dryRun": "All"} if is_dry_run else {}
    try:
        await workspace.client.create(workspace.core("configmaps"), manifest, Object, **params)
    except AlreadyExists:
        there = await workspace.client.get(workspace.core(f"configmaps/{name}"), Object)
        if any(there.get(part) != manifest.get(part) for part in ("data", "binaryData")):
            reason = (
                f"ConfigMap {name} exists in namespace {namespace} with other data; rename yours, or delete that one"
            )
            raise Failure(reason, Exit.REFUSED) from None


def as_manifest(made: Object) -> Manifest:
    """What the API server answered, without the fields that it owns: to be saved and applied."""
    metadata = {key: made["metadata"][key] for key in _WRITTEN if key in made["metadata"]}
    return {**{key: made[key] for key in ("apiVersion", "kind")}, "metadata": metadata, "spec": made["spec"]}


_WRITTEN = ("name", "namespace", "labels", "annotations")


def next_step(options: argparse.Namespace, name: str) -> str:
    """The command that follows the new run, in the same cluster and namespace."""
    return f"run {name} is created; next: {hint(options, 'run', 'watch', name)}"
