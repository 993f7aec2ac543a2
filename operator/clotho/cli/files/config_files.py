"""Another trainer's config file as a TrainingRun, with the files that it names in a ConfigMap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clotho.authoring.changes import spec_problems
from clotho.authoring.from_config import convert
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.documents import title
from clotho.cli.files.manifests import API_VERSION, CONFIG_MAP_LIMIT, Manifest, object_name
from clotho.cli.files.python_source import UnreadableError, defined_names, local_imports
from clotho.cli.terminal import output
from clotho.cluster.client import Object
from clotho_contract.config_file import ConfigFileError, Translated
from clotho_contract.nearest import nearest

WANDB_SECRET = "wandb"  # noqa: S105 (a name)


def manifests_of(
    document: Any, file: Path, *, name: str = "", gpus: int = 1, wandb_secret: str = WANDB_SECRET
) -> list[Manifest]:
    """The TrainingRun last, validated; before it the ConfigMap with the files beside the config file, if any."""
    converted = _converted(document, file)
    name = name or object_name(file.stem)
    spec = converted.spec
    inline, wandb = spec["inline"], spec.get("tracking", {}).get("wandb")
    files = _files(inline, file.parent)
    if wandb is not None and wandb.get("mode", "online") == "online":
        wandb.setdefault("secretName", wandb_secret)
    if gpus != 1:
        spec["trainer"] = {"gpus": gpus}
    for place in ("dataset", "code"):
        if files.get(place):
            inline.setdefault(place, {})["configMapName"] = name
    if problems := spec_problems(name, spec):
        raise Failure(f"{title(file)}: {converted.in_their_words('; '.join(problems))}", Exit.USAGE)
    manifest = {"apiVersion": API_VERSION, "kind": "TrainingRun", "metadata": {"name": name}, "spec": spec}
    data = {**files.get("dataset", {}), **files.get("code", {})}
    if not data:
        return [manifest]
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}, manifest]


def _converted(document: Any, file: Path) -> Translated:
    try:
        converted = convert(document)
    except ConfigFileError as error:
        raise Failure(f"{title(file)}: {error}", Exit.USAGE) from error
    for note in converted.notes:
        output.note(note)
    return converted


def _files(inline: Object, folder: Path) -> dict[str, dict[str, str]]:
    """The dataset, and the reward's module with its imports, where they exist here; else the image must have them."""
    found = {"dataset": _dataset(inline["dataset"], folder), "code": _code(inline["rewards"]["model"], folder)}
    if (size := sum(len(text.encode()) for texts in found.values() for text in texts.values())) > CONFIG_MAP_LIMIT:
        raise Failure(
            f"{' and '.join(name for texts in found.values() for name in texts)} have {size / 1e6:.1f} MB, too large "
            "for a ConfigMap; put the data on a volume claim and name it in data.claim_name",
            Exit.USAGE,
        )
    return found


def _dataset(dataset: Object, folder: Path) -> dict[str, str]:
    if not dataset.get("path") or dataset.get("claimName") or dataset.get("configMapName"):
        return {}
    path = folder / dataset["path"]
    if path.is_file():
        texts = _texts([path])
        if not texts[path.name].strip():
            raise Failure(f"data.path: {path} is empty", Exit.USAGE)
        dataset["path"] = path.name
        return texts
    if not Path(dataset["path"]).is_absolute():
        fix = "create it, or name the volume claim that has it in data.claim_name"
        raise Failure(f"data.path: there is no file {path}; {fix}", Exit.USAGE)
    output.note(f"data.path: there is no file {path} here; the trainer's image must have it")
    return {}


def _code(entry: str, folder: Path) -> dict[str, str]:
    module, _, function = entry.partition(":")
    path = folder / f"{module}.py"
    if not path.is_file():
        output.note(f"training.reward_model: there is no {path}; the trainer's image must have the module {module}")
        return {}
    try:
        names = defined_names(path)
    except UnreadableError as error:
        raise Failure(f"training.reward_model: {path}: {error}", Exit.USAGE) from error
    if function.partition(".")[0] not in names and "*" not in names:
        raise Failure(f"training.reward_model: {path} has no {function}{nearest(function, names)}", Exit.USAGE)
    return _texts(local_imports(path))


def _texts(paths: list[Path]) -> dict[str, str]:
    try:
        return {path.name: path.read_text() for path in paths}
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot put {paths[0]} into a ConfigMap: {error}", Exit.USAGE) from error
