"""`run download`: a run's model, checkpoint, metrics or logs as files on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from clotho.cli.failure import Exit, Failure
from clotho.cli.session.claims import checkpoint_claim
from clotho.cli.session.copying import Source, copy
from clotho.cli.session.hints import hint
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import output, view
from clotho.workspace.logs import read_log
from clotho.workspace.objects import Workspace
from clotho_contract.names import DATA_PATH

Object = dict[str, Any]
TRAINING_STATE: Final = ("optimizer.pt", "state.pt")  # needed only to continue training


async def download(options: argparse.Namespace, workspace: Workspace) -> int:
    run = await find_run(workspace, options.name)
    target = _target(options)
    match options.what:
        case "metrics":
            return _metrics(options, run, target)
        case "logs":
            return await _logs(options, workspace, target)
    source = model_source(run) if options.what == "model" else checkpoint_source(run)
    if options.only_list:
        _show_place(options, run, source)
        return Exit.OK
    sizes = await copy(workspace, source, target, options.image)
    _show_files(options, target, sizes, path=source.path)
    return Exit.OK


def _target(options: argparse.Namespace) -> Path:
    target: Path = options.to or Path(options.name)
    if not options.only_list and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Failure(f"{target} already exists; choose an empty or new directory with --to", Exit.USAGE)
    return target


def model_source(run: Object) -> Source:
    """What `spec.export` wrote; without an export, the newest checkpoint without what only training needs."""
    export = run.get("status", {}).get("export") or {}
    if export.get("phase") == "Completed" and export.get("folder"):
        folder = str(PurePosixPath(DATA_PATH) / export["folder"])
        return Source(run["metadata"]["name"], checkpoint_claim(run), folder, image=trainer_image(run))
    return checkpoint_source(run)._replace(without=TRAINING_STATE)


def checkpoint_source(run: Object) -> Source:
    """The final checkpoint, or the newest of a run that is not finished."""
    name, status = run["metadata"]["name"], run.get("status", {})
    path = (status.get("results") or {}).get("path") or (status.get("checkpoint") or {}).get("path", "")
    if not path:
        raise Failure(f"run {name} has no checkpoint yet", Exit.NOT_FOUND)
    if run["spec"].get("storage", {}).get("ephemeral"):
        raise Failure(f"run {name} has ephemeral storage: its checkpoints are lost with its pods", Exit.REFUSED)
    if not PurePosixPath(path).is_relative_to(DATA_PATH):
        raise Failure(f"the checkpoint {path} is not on the claim, which is mounted at {DATA_PATH}", Exit.REFUSED)
    return Source(name, checkpoint_claim(run), path, image=trainer_image(run))


def trainer_image(run: Object) -> str:
    """Of its last pod; empty in the status of an older operator."""
    trainer = (run.get("status", {}).get("components") or {}).get("trainer") or {}
    return str(trainer.get("image", ""))


def _show_place(options: argparse.Namespace, run: Object, source: Source) -> None:
    files = view.exported_files(run) if options.what == "model" and not source.without else []
    data = {"run": source.run, "claim": source.claim, "path": source.path, "files": files}
    fetch = hint(options, "run", "download", source.run, "--what", options.what)
    output.show(
        options.output,
        data,
        [f"{source.path} on claim {source.claim}", *view.file_lines(files), f"To copy it: {fetch}"],
    )


def _show_files(options: argparse.Namespace, target: Path, sizes: dict[str, int], **more: str) -> None:
    total = sum(sizes.values())
    data = {"run": options.name, **more, "folder": str(target), "bytes": total, "files": sizes}
    files = [{"path": path, "bytes": size} for path, size in sorted(sizes.items())]
    output.show(options.output, data, [*view.file_lines(files), f"{view.size(total)} in {target}"])


def _metrics(options: argparse.Namespace, run: Object, target: Path) -> int:
    """What the status remembers: at most ten samples spread over the run. W&B and Prometheus have every step."""
    status = run.get("status", {})
    data = {key: status.get(key) for key in ("phase", "message", "progress", "history", "results")}
    text = msgspec.json.format(msgspec.json.encode({"run": options.name, **data}), indent=2)
    if options.only_list:
        output.show(options.output, data, [text.decode()])
        return Exit.OK
    _show_files(options, target, {"metrics.json": _write(target / "metrics.json", text + b"\n")})
    return Exit.OK


async def _logs(options: argparse.Namespace, workspace: Workspace, target: Path) -> int:
    pods = await workspace.pods_of(options.name)
    if not pods:
        raise Failure(f"run {options.name} has no pods any more, and so no logs", Exit.NOT_FOUND)
    if options.only_list:
        names = [f"{pod['metadata']['name']}.log" for pod in pods]
        output.show(options.output, names, names)
        return Exit.OK
    sizes = {}
    for pod in pods:
        name = f"{pod['metadata']['name']}.log"
        lines = [line async for line in read_log(workspace, pod)]
        sizes[name] = _write(target / name, b"".join(line + b"\n" for line in lines))
    _show_files(options, target, sizes)
    return Exit.OK


def _write(path: Path, content: bytes) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_bytes(content)
