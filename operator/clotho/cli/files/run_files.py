"""A file with one TrainingRun and the ConfigMaps that it needs, or with another trainer's config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clotho.api.names import API_VERSION
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.config_files import manifests_of
from clotho.cli.files.documents import read_documents, title
from clotho.cli.files.manifests import Manifest
from clotho_contract.config_file import is_config_file


def read_run(path: Path) -> Manifest:
    run, _ = _read(path)
    return run


def read_run_and_maps(path: Path) -> tuple[Manifest, list[Manifest]]:
    """What one command can create; a file with other objects is refused, so that none is silently dropped."""
    run, others = _read(path)
    if unexpected := [each for each in others if not _is_map(each)]:
        problem = f"{title(path)} also contains {_named(unexpected)}; create all of it with kubectl apply -f"
        raise Failure(problem, Exit.USAGE)
    return run, others


def _read(path: Path) -> tuple[Manifest, list[Any]]:
    documents = read_documents(path)
    if len(documents) == 1 and is_config_file(documents[0]):
        *maps, run = manifests_of(documents[0], path)
        return run, maps
    runs = [each for each in documents if isinstance(each, dict) and each.get("kind") == "TrainingRun"]
    if not runs:
        raise Failure(f"{title(path)} contains {_named(documents)}, but no TrainingRun", Exit.USAGE)
    if len(runs) > 1:
        raise Failure(f"{title(path)} contains {_named(runs)}; it can contain one TrainingRun", Exit.USAGE)
    (run,) = runs
    version = run.get("apiVersion", API_VERSION)
    if version != API_VERSION:
        raise Failure(f"{title(path)}: apiVersion {version} is unknown; use {API_VERSION}", Exit.USAGE)
    if not isinstance(run.get("spec"), dict) or not isinstance(run.get("metadata", {}), dict):
        raise Failure(f"{title(path)}: the TrainingRun has no spec", Exit.USAGE)
    return run, [each for each in documents if each is not run]


def _is_map(document: Any) -> bool:
    is_object = isinstance(document, dict) and isinstance(document.get("metadata"), dict)
    return is_object and document.get("kind") == "ConfigMap" and isinstance(document["metadata"].get("name"), str)


def _named(documents: Sequence[Any]) -> str:
    """`ConfigMap words and Environment sums`."""
    names = []
    for each in documents:
        kind = each.get("kind") if isinstance(each, dict) else None
        metadata = each.get("metadata") if isinstance(each, dict) else None
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        names.append(f"{kind} {name}".rstrip() if kind else "something other than a Kubernetes object")
    return " and ".join(names) or "nothing"
