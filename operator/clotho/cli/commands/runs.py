"""`run`: start, list, look at, stop and resume training runs."""

from __future__ import annotations

import argparse
from typing import Any, Final

from clotho.authoring.nearest import nearest
from clotho.authoring.run_fields import run_fields, said_at, with_value
from clotho.cli.commands.watching import follow
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.changes import read_change
from clotho.cli.files.documents import title
from clotho.cli.files.manifests import Manifest
from clotho.cli.files.run_files import read_run_and_maps, spec_problems
from clotho.cli.session.creation import as_manifest, create_run, next_step
from clotho.cli.session.drafts import edited_draft
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import output, view
from clotho.cli.terminal.screen import listed, page_width
from clotho.workspace.drafting import fresh_name
from clotho.workspace.objects import Workspace, WrongStateError

Object = dict[str, Any]


async def start(options: argparse.Namespace, workspace: Workspace) -> int:
    changes = [read_change(text) for text in options.changes]
    changes += [("training.steps", options.steps)] if options.steps else []
    changes += [("model.name", options.model)] if options.model else []
    maps: list[Manifest] = []
    namespace = options.namespace
    if options.file:
        manifest, maps = _from_file(options, changes)
        namespace = manifest["metadata"].get("namespace") or namespace
        workspace.namespace = namespace or workspace.namespace
    else:
        manifest = await _from_environment(options, workspace, changes)
    name = manifest["metadata"]["name"]
    run = await create_run(workspace, manifest, maps, is_dry_run=options.dry_run)
    if options.dry_run:
        _print(options.output, [*maps, as_manifest(run)])
        return Exit.OK
    if options.watch:
        return await follow(workspace, name, None)
    output.show(options.output, run, [next_step(options, name, namespace)])
    return Exit.OK


def _print(how: str, manifests: list[Manifest]) -> None:
    """For kubectl: several as documents, or as a List where the format knows only one."""
    if how != "json":
        print(output.to_yaml(*manifests), end="")
        return
    (*others, run) = manifests
    output.show(how, {"apiVersion": "v1", "kind": "List", "items": manifests} if others else run, ())


def _from_file(options: argparse.Namespace, changes: list[tuple[str, Any]]) -> tuple[Manifest, list[Manifest]]:
    manifest, maps = read_run_and_maps(options.file)
    metadata, spec = manifest.get("metadata", {}), manifest["spec"]
    source, written = title(options.file), metadata.get("namespace")
    if written and options.namespace and written != options.namespace:
        raise Failure(f"{source} is for namespace {written}, not for {options.namespace}", Exit.USAGE)
    for name, value in changes:
        spec = _changed(spec, name, value)
    name = options.name or metadata.get("name") or ""
    if not name:
        raise Failure(f"{source}: the run has no name; give one with --name", Exit.USAGE)
    if problems := spec_problems(name, spec):
        changed = " with --set" if options.changes else ""
        raise Failure(f"{source}{changed}: {'; '.join(problems)}", Exit.USAGE)
    return {"metadata": {**metadata, "name": name}, "spec": spec}, maps


def _changed(spec: Object, name: str, value: Any) -> Object:
    if name in run_fields():
        return with_value(spec, name, value)
    places = spec.get("environments")
    if "." in name or not isinstance(places, list) or len(places) != 1 or not isinstance(places[0], dict):
        told = f"--set {name}: no such field of a run{nearest(name, run_fields())}{listed('fields', run_fields())}"
        raise Failure(told, Exit.USAGE)
    (place,) = places
    return {**spec, "environments": [{**place, "config": {**(place.get("config") or {}), name: value}}]}


async def _from_environment(
    options: argparse.Namespace, workspace: Workspace, changes: list[tuple[str, Any]]
) -> Manifest:
    draft = await edited_draft(workspace, options.environment, changes)
    name = options.name or fresh_name(options.environment)
    spec = draft.run_spec()
    if missing := [option for path, option in _NEEDED.items() if said_at(spec, path) in (None, "")]:
        raise Failure(f"the run needs {' and '.join(missing)}", Exit.USAGE)
    if problems := draft.problems(name):
        raise Failure("; ".join(problems), Exit.USAGE)
    return {"metadata": {"name": name}, "spec": spec}


_NEEDED: Final = {"model.name": "--model", "training.steps": "--steps"}


async def list_all(options: argparse.Namespace, workspace: Workspace) -> int:
    everywhere = options.all_namespaces
    items = await (workspace.all_namespaces("TrainingRun") if everywhere else workspace.all("TrainingRun"))
    header = ["NAMESPACE"] * everywhere + ["NAME", "PHASE", "STEP", "REWARD", "TOK/S", "RESTARTS", "AGE"]
    body = [[run["metadata"]["namespace"]] * everywhere + _row(run) for run in items]
    empty = f"No runs in {'any namespace' if everywhere else workspace.namespace}."
    output.show(options.output, items, output.rows(header, body, empty))
    return Exit.OK


def _row(run: Object) -> list[str]:
    status = run.get("status", {})
    progress = view.progress_of(run)
    rewards = [sample["rewardMean"] for sample in status.get("history", ()) if sample.get("rewardMean") is not None]
    reward = f"{view.number(progress.get('rewardMean'))} {view.sparkline(rewards, 10)}".strip()
    speed = progress.get("tokensPerSecond")
    return [
        run["metadata"]["name"],
        status.get("phase", "Pending"),
        f"{progress.get('step', 0)}/{run['spec']['training']['steps']}",
        reward,
        f"{speed:.0f}" if speed else "-",
        str(status.get("restarts", 0)),
        output.age(run["metadata"].get("creationTimestamp")),
    ]


async def status(options: argparse.Namespace, workspace: Workspace) -> int:
    run = await find_run(workspace, options.name)
    rewards = view.rewards_of(run)
    lines = view.live_view(run, list(rewards.values()), view.elapsed_seconds(run), page_width())
    lines += map(view.condition_line, run.get("status", {}).get("conditions", ()))
    output.show(options.output, run, lines)
    return Exit.OK


async def results(options: argparse.Namespace, workspace: Workspace) -> int:
    run = await find_run(workspace, options.name)
    if not view.is_finished(run):
        phase = run.get("status", {}).get("phase", "Pending")
        output.note(f"run {options.name} is {phase}: these are not final")
    status = run.get("status", {})
    data = {key: status.get(key) for key in ("phase", "message", "results", "progress", "history", "checkpoint")}
    output.show(options.output, {"name": options.name, **data}, view.results_view({"status": status}))
    return Exit.OK


async def stop(options: argparse.Namespace, workspace: Workspace) -> int:
    await find_run(workspace, options.name)
    turn = workspace.suspend_run if options.suspend else workspace.stop_run
    return await _turned(options, turn(options.name), "is being suspended" if options.suspend else "is stopping")


async def resume(options: argparse.Namespace, workspace: Workspace) -> int:
    await find_run(workspace, options.name)
    return await _turned(options, workspace.resume_run(options.name), "goes on")


async def _turned(options: argparse.Namespace, turn: Any, told: str) -> int:
    try:
        run = await turn
    except WrongStateError as error:
        raise Failure(str(error), Exit.REFUSED) from error
    output.show(options.output, run, [f"run {options.name} {told}"])
    return Exit.OK
