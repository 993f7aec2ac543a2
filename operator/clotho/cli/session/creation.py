"""Creates a run with the ConfigMaps that it needs, and says how to go on."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from clotho.cli.failure import Exit, Failure
from clotho.cli.files.manifests import Manifest
from clotho.cluster.client import Object
from clotho.cluster.outcomes import AlreadyExists
from clotho.workspace.objects import Workspace


async def create_run(
    workspace: Workspace, run: Manifest, maps: Sequence[Manifest] = (), *, is_dry_run: bool = False
) -> Object:
    """Nothing is left behind by a run that the API server refuses: it is asked before the ConfigMaps are made."""
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
        told = f"run {name} already exists in namespace {workspace.namespace}; choose another --name, or delete it: "
        raise Failure(f"{told}kubectl delete trainingrun {name} -n {workspace.namespace}", Exit.REFUSED) from error


async def _create_map(workspace: Workspace, manifest: Manifest, *, is_dry_run: bool) -> None:
    """One that is there already is used as it is if it holds the same; a live run may be reading another."""
    name, namespace = manifest["metadata"]["name"], workspace.namespace
    if manifest["metadata"].get("namespace", namespace) != namespace:
        raise Failure(f"ConfigMap {name} is for another namespace than {namespace}, the run's", Exit.USAGE)
    params = {"dryRun": "All"} if is_dry_run else {}
    try:
        await workspace.client.create(workspace.core("configmaps"), manifest, Object, **params)
    except AlreadyExists:
        there = await workspace.client.get(workspace.core(f"configmaps/{name}"), Object)
        if any(there.get(part) != manifest.get(part) for part in ("data", "binaryData")):
            told = f"ConfigMap {name} exists in namespace {namespace} with other data; rename yours, or delete that one"
            raise Failure(told, Exit.REFUSED) from None


def as_manifest(made: Object) -> Manifest:
    """What the API server answered, without what only it can say: to be saved and applied."""
    metadata = {key: made["metadata"][key] for key in _WRITTEN if key in made["metadata"]}
    return {**{key: made[key] for key in ("apiVersion", "kind")}, "metadata": metadata, "spec": made["spec"]}


_WRITTEN = ("name", "namespace", "labels", "annotations")


def next_step(options: argparse.Namespace, name: str, namespace: str) -> str:
    """The command that looks at the new run, in the cluster that was asked for."""
    given = {"-n": namespace, "--context": options.context, "--kubeconfig": options.kubeconfig}
    words = [word for option, value in given.items() if value for word in (option, str(value))]
    program = options.parser.prog.rpartition(" ")[0]
    return f"run {name} is created; next: {program} {shlex.join(['watch', name, *words])}"
