"""Manifests of Environments and their ConfigMaps, from what discovery found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from clotho.cli.files.discovery import Discovery, FoundEnvironment, Problem
from clotho.cli.files.python_source import local_imports

Manifest = dict[str, Any]
API_VERSION: Final = "clotho.dev/v1alpha1"
MOUNT: Final = "/environment"  # where a ConfigMap's files appear in the pods
CONFIG_MAP_LIMIT: Final = 900_000  # of the API server's limit of 1 MiB, with room for the rest of the object
DESCRIPTION_LIMIT: Final = 500
NAME_LIMIT: Final = 63
NO_ATROPOS_IMAGE: Final = (
    "Atropos' library is in an image of its own, which no installed release names: push it with "
    "`make push REGISTRY=... TAG=... VARIANTS=atropos` and upgrade the release with its dist/images.yaml, "
    "or pass --image with the name in dist/images.txt"
)


def environment_manifests(
    found: Discovery, roots: Sequence[Path], *, image: str, atropos_image: str, image_path: str, as_config_map: bool
) -> list[Manifest]:
    """An Environment for each that can run; with its files in a ConfigMap on request.

    `image` runs all of them; without it the operator's image does, and `atropos_image` the files of Atropos.
    """
    manifests: list[Manifest] = []
    for environment, name in _with_names(each for each in found.environments if each.is_run):
        own_image = image or (atropos_image if environment.flavour == "atropos" else "")
        if environment.flavour == "atropos" and not own_image:
            found.problems.append(Problem(environment.path, NO_ATROPOS_IMAGE))
        elif not as_config_map:
            entry = _entry(environment, _inside(environment, roots, image_path))
            manifests.append(_environment(environment, name, entry, own_image))
        elif files := _files(environment, found.problems):
            entry = _entry(environment, f"{MOUNT}/{environment.path.name}")
            manifests += [
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": files},
                _environment(environment, name, entry, own_image, config_map=name),
            ]
    return manifests


def _environment(found: FoundEnvironment, name: str, entry: str, image: str, config_map: str = "") -> Manifest:
    spec = {
        "image": image,
        "entry": entry,
        "configMapName": config_map,
        "description": found.description[:DESCRIPTION_LIMIT],
    }
    given = {key: value for key, value in spec.items() if value}
    return {"apiVersion": API_VERSION, "kind": "Environment", "metadata": {"name": name}, "spec": given}


def _entry(found: FoundEnvironment, path: str) -> str:
    return f"atropos:{path}" if found.flavour == "atropos" else f"{path}:{found.class_name}"


def _inside(found: FoundEnvironment, roots: Sequence[Path], image_path: str) -> str:
    """Where the file is in the image: below `--image-path` as it is below the directory that was searched."""
    for root in roots:
        if root.is_dir() and found.path.is_relative_to(root):
            return str(PurePosixPath(image_path) / found.path.relative_to(root).as_posix())
    return str(PurePosixPath(image_path) / found.path.name)


def _files(found: FoundEnvironment, problems: list[Problem]) -> dict[str, str]:
    files: dict[str, str] = {}
    try:
        files = {path.name: path.read_text() for path in local_imports(found.path)}
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(found.path, f"cannot go into a ConfigMap: {error}"))
        return {}
    size = sum(len(text.encode()) for text in files.values())
    if size > CONFIG_MAP_LIMIT:
        problem = f"{size / 1e6:.1f} MB with its imports, too large for a ConfigMap; build an image and use --image"
        problems.append(Problem(found.path, problem))
        return {}
    return files


def _with_names(found: Iterable[FoundEnvironment]) -> list[tuple[FoundEnvironment, str]]:
    """Names that Kubernetes takes; of two alike, the second gets its class's name added, then a number."""
    taken: set[str] = set()
    named = []
    for environment in found:
        plain = object_name(environment.name)
        choices = [plain, object_name(f"{environment.name}-{environment.class_name}")]
        choices += [f"{plain[: NAME_LIMIT - 5].rstrip('-')}-{number}" for number in range(2, 1000)]
        name = next(choice for choice in choices if choice not in taken)
        taken.add(name)
        named.append((environment, name))
    return named


def object_name(text: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name if name[:1].isalpha() else f"env-{name}"
    return name[:NAME_LIMIT].strip("-")
