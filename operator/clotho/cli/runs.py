"""`run`: start, list, look at, stop and resume training runs."""

from __future__ import annotations

import argparse
from typing import Any

from clotho.api import validation
from clotho.api.run_fields import run_fields, with_value
from clotho.api.training_run import TrainingRun, parse
from clotho.cli import output, view
from clotho.cli.changes import read_change
from clotho.cli.drafts import edited_draft
from clotho.cli.failure import Exit, Failure, listed, nearest
from clotho.cli.lookup import find_run
from clotho.cli.manifests import read_run
from clotho.cli.screen import terminal_width
from clotho.cli.watching import follow
from clotho.cluster.drafting import fresh_name
from clotho.cluster.workspace import Workspace, WrongStateError

Object = dict[str, Any]


async def start(options: argparse.Namespace, workspace: Workspace) -> int:
    changes = [read_change(text) for text in options.changes]
    changes += [("training.steps", options.steps)] if options.steps else []
    changes += [("model.name", options.model)] if options.model else []
    labelled: Object = {}
    if options.file:
        name, spec, labelled = _from_file(options, workspace, changes)
    else:
        name, spec = await _from_environment(options, workspace, changes)
    run = await workspace.create("TrainingRun", name, spec, labelled=labelled, is_dry_run=options.dry_run)
    if options.dry_run:
        output.show("yaml" if options.output == "table" else options.output, run, ())
        return Exit.OK
    if options.watch:
        return await follow(workspace, name, None)
    next_steps = f"run {name} is created; next: {options.parser.prog.rpartition(' ')[0]} watch {name}"
    output.show(options.output, run, [next_steps])
    return Exit.OK


def _from_file(
    options: argparse.Namespace, workspace: Workspace, changes: list[tuple[str, Any]]
) -> tuple[str, Object, Object]:
    manifest = read_run(options.file)
    metadata, spec = manifest.get("metadata", {}), manifest["spec"]
    written = metadata.get("namespace")
    if written and options.namespace and written != options.namespace:
        raise Failure(f"{options.file} is for namespace {written}, not for {options.namespace}", Exit.USAGE)
    workspace.namespace = written or workspace.namespace
    for name, value in changes:
        spec = _changed(spec, name, value)
    name = options.name or metadata.get("name") or ""
    if not name:
        raise Failure(f"{options.file}: the run has no name; give one with --name", Exit.USAGE)
    run = parse({"metadata": {"name": name}, "spec": spec})
    if not isinstance(run, TrainingRun):
        raise Failure(run.problem, Exit.USAGE)
    if problems := validation.problems(name, run.spec):
        raise Failure("; ".join(problems), Exit.USAGE)
    return name, spec, {key: metadata[key] for key in ("labels", "annotations") if key in metadata}


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
) -> tuple[str, Object]:
    draft = await edited_draft(workspace, options.environment, changes)
    name = options.name or fresh_name(options.environment)
    if problems := draft.problems(name):
        raise Failure("; ".join(problems), Exit.USAGE)
    return name, draft.run_spec()


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
    progress = status.get("progress") or {}
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
    lines = view.live_view(run, list(rewards.values()), view.elapsed_seconds(run), terminal_width())
    for condition in run.get("status", {}).get("conditions", ()):
        lines.append(f"  {condition['type']}={condition['status']}  {condition['reason']}: {condition['message']}")
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
