"""`run from-config`: another trainer's config file as a TrainingRun, with the files that it names in a ConfigMap."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from clotho.cli.failure import Exit, Failure
from clotho.cli.files.config_files import manifests_of
from clotho.cli.files.documents import read_documents, title
from clotho.cli.session.connection import run_connected
from clotho.cli.session.creation import create_run, next_step
from clotho.cli.terminal import output
from clotho.workspace.objects import Workspace


def convert(options: argparse.Namespace) -> int:
    *maps, run = manifests = manifests_of(
        _read(options.file), options.file, name=options.name, gpus=options.gpus, wandb_secret=options.wandb_secret
    )
    if not options.apply:
        print(output.to_yaml(*manifests), end="")
        return Exit.OK

    async def apply(_: argparse.Namespace, workspace: Workspace) -> int:
        await create_run(workspace, run, maps)
        print(next_step(options, run["metadata"]["name"]))
        return Exit.OK

    return run_connected(apply, options)


def _read(path: Path) -> Any:
    documents = read_documents(path)
    if len(documents) > 1:
        raise Failure(f"{title(path)} has {len(documents)} documents; a config is one", Exit.USAGE)
    document = documents[0] if documents else None
    if isinstance(document, dict) and "apiVersion" in document:
        kind = document.get("kind", "Kubernetes object")
        hint = f"; start it with `clotho run start -f {path}`" if kind == "TrainingRun" else ""
        raise Failure(f"{title(path)} is a {kind}, not another trainer's config{hint}", Exit.USAGE)
    return document
