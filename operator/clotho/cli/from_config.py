"""`run from-config`: another trainer's config file as a TrainingRun, with the files that it names in a ConfigMap."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from clotho.api import validation
from clotho.api.from_config import ConfigFileError
from clotho.api.from_config import convert as convert_document
from clotho.api.training_run import TrainingRun, parse
from clotho.cli import output
from clotho.cli.connection import run_connected
from clotho.cli.discovery import local_imports
from clotho.cli.failure import Exit, Failure
from clotho.cli.manifests import API_VERSION, CONFIG_MAP_LIMIT, Manifest, object_name
from clotho.cluster.client import Object
from clotho.cluster.workspace import Workspace


def convert(options: argparse.Namespace) -> int:
    try:
        converted = convert_document(_read(options.file))
    except ConfigFileError as error:
        raise Failure(f"{options.file}: {error}", Exit.USAGE) from error
    for note in converted.notes:
        output.note(note)
    name = options.name or object_name(options.file.stem)
    manifests = _manifests(name, converted.spec, options)
    if not options.apply:
        print(output.to_yaml(*manifests), end="")
        return Exit.OK

    async def apply(_: argparse.Namespace, workspace: Workspace) -> int:
        await create(manifests, workspace)
        print(f"run {name} is created; next: {options.parser.prog.rpartition(' ')[0]} watch {name}")
        return Exit.OK

    return run_connected(apply, options)


async def create(manifests: list[Manifest], workspace: Workspace) -> None:
    """Nothing is left behind by a run that the API server refuses: it is asked first."""
    *maps, run = manifests
    name = run["metadata"]["name"]
    await workspace.create("TrainingRun", name, run["spec"], is_dry_run=True)
    for each in maps:
        await workspace.client.create(workspace.core("configmaps"), each, Object)
    await workspace.create("TrainingRun", name, run["spec"])


def _read(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}", Exit.USAGE) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Failure(f"{path} is not YAML: {' '.join(str(error).split())}", Exit.USAGE) from error


def _manifests(name: str, spec: Object, options: argparse.Namespace) -> list[Manifest]:
    """The TrainingRun last, checked; before it the ConfigMap, where files lie beside the config file."""
    inline, wandb = spec["inline"], spec.get("tracking", {}).get("wandb")
    files = _files(inline, options.file.parent)
    if wandb is not None and wandb.get("mode", "online") == "online":
        wandb.setdefault("secretName", options.wandb_secret)
    if options.gpus != 1:
        spec["trainer"] = {"gpus": options.gpus}
    for place in ("dataset", "code"):
        if files.get(place):
            inline.setdefault(place, {})["configMapName"] = name
    run = parse({"metadata": {"name": name}, "spec": spec})
    if not isinstance(run, TrainingRun):
        raise Failure(run.problem, Exit.USAGE)
    if problems := validation.problems(name, run.spec):
        raise Failure("; ".join(problems), Exit.USAGE)
    manifest = {"apiVersion": API_VERSION, "kind": "TrainingRun", "metadata": {"name": name}, "spec": spec}
    data = {**files.get("dataset", {}), **files.get("code", {})}
    if not data:
        return [manifest]
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}, manifest]


def _files(inline: Object, folder: Path) -> dict[str, dict[str, str]]:
    """The dataset and the reward's module with its neighbours, as far as they are here; else the pod must have them."""
    dataset, module = inline["dataset"], inline["rewards"]["model"].partition(":")[0]
    found: dict[str, dict[str, str]] = {}
    data, code = folder / dataset.get("path", ""), folder / f"{module}.py"
    is_elsewhere = dataset.get("claimName") or dataset.get("configMapName")
    if dataset.get("path") and data.is_file() and not is_elsewhere:
        found["dataset"] = _texts([data])
        dataset["path"] = data.name
    if code.is_file():
        found["code"] = _texts(local_imports(code))
    if (size := sum(len(text.encode()) for texts in found.values() for text in texts.values())) > CONFIG_MAP_LIMIT:
        raise Failure(
            f"{data} and {code} have {size / 1e6:.1f} MB, too much for a ConfigMap; "
            "put the data on a volume claim and name it in data.claim_name",
            Exit.USAGE,
        )
    return found


def _texts(paths: list[Path]) -> dict[str, str]:
    try:
        return {path.name: path.read_text() for path in paths}
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot put {paths[0]} into a ConfigMap: {error}", Exit.USAGE) from error
