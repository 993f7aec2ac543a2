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
from clotho.plan.wording import counted
from clotho.workspace.history import history_of, kept_logs_of
from clotho.workspace.logs import pod_title, read_log
from clotho.workspace.objects import Workspace
from clotho_contract.names import DATA_PATH

Object = dict[str, Any]
TRAINING_STATE: Final = ("optimizer.pt", "state.pt")  # needed only to continue training


async def download(options: argparse.Namespace, workspace: Workspace) -> int:
    run = await find_run(workspace, options.name)
    target = _target(options)
    match options.what:
        case "metrics":
            return await _metrics(options, workspace, run, target)
        case "logs":
            return await _logs(options, workspace, run, target)
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
        yet = "" if view.is_finished(run) else " yet"
        raise Failure(f"run {name} has no checkpoint{yet}", Exit.NOT_FOUND)
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


async def _metrics(options: argparse.Namespace, workspace: Workspace, run: Object, target: Path) -> int:
    """What the status has, and the kept curves. Every step is in a file on the claim, in W&B and in Prometheus."""
    status = run.get("status", {})
    data = {key: status.get(key) for key in ("phase", "message", "progress", "history", "results", "evaluations")}
    data["series"] = msgspec.to_builtins((await history_of(workspace, run)).series)
    text = msgspec.json.format(msgspec.json.encode({"run": options.name, **data}), indent=2)
    if options.only_list:
        fetch = hint(options, "run", "download", options.name, "--what", "metrics")
        curves = counted(len(data["series"].get("steps", ())), "step")
        output.show(options.output, data, [f"metrics.json: results, and curves of {curves}", f"To copy it: {fetch}"])
        return Exit.OK
    _show_files(options, target, {"metrics.json": _write(target / "metrics.json", text + b"\n")})
    return Exit.OK


async def _logs(options: argparse.Namespace, workspace: Workspace, run: Object, target: Path) -> int:
    pods = {f"{pod['metadata']['name']}.log": pod for pod in await workspace.pods_of(options.name)}
    present = {(_attempt(run), pod_title(pod)) for pod in pods.values()}
    logs = await kept_logs_of(workspace, run)
    kept = {f"{log.key}.log": log for log in logs if (log.attempt, log.title) not in present}
    if not pods and not kept:
        raise Failure(f"run {options.name} has no pods now, and no log of one is kept", Exit.NOT_FOUND)
    if options.only_list:
        names = [*pods, *kept]
        output.show(options.output, names, names)
        return Exit.OK
    sizes = {}
    for name, pod in pods.items():
        lines = [line async for line in read_log(workspace, pod)]
        sizes[name] = _write(target / name, b"".join(line + b"\n" for line in lines))
    sizes |= {name: _write(target / name, f"{log.text}\n".encode()) for name, log in kept.items()}
    _show_files(options, target, sizes)
    return Exit.OK


def _attempt(run: Object) -> int:
    return int(run.get("status", {}).get("attempt", 0))


def _write(path: Path, content: bytes) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_bytes(content)
