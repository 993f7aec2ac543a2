"""`run`: start, list, show, stop and resume training runs."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from clotho.authoring.changes import spec_problems
from clotho.authoring.run_fields import value_in
from clotho.cli.commands.watching import continuing, follow
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.changes import changed, read_change
from clotho.cli.files.documents import title
from clotho.cli.files.manifests import Manifest
from clotho.cli.files.run_files import read_run_and_maps
from clotho.cli.session.creation import as_manifest, create_run, next_step
from clotho.cli.session.drafts import edited_draft, refuse
from clotho.cli.session.hints import hint
from clotho.cli.session.lookup import all_runs, find_run
from clotho.cli.terminal import output, view
from clotho.cli.terminal.fitting import without_columns
from clotho.cli.terminal.screen import page_width
from clotho.workspace.drafting import fresh_name
from clotho.workspace.objects import Workspace, WrongStateError
from clotho.workspace.progress import progress_of, rewards_of

Object = dict[str, Any]


async def start(options: argparse.Namespace, workspace: Workspace) -> int:
    changes = [read_change(text) for text in options.changes]
    changes += [("training.steps", options.steps)] if options.steps else []
    changes += [("model.name", options.model)] if options.model else []
    if not options.file:
        return await launch(options, workspace, await _from_environment(options, workspace, changes))
    manifest, maps = _from_file(options, changes)
    namespace = manifest["metadata"].get("namespace") or options.namespace
    workspace.namespace = namespace or workspace.namespace
    inside = argparse.Namespace(**vars(options) | {"namespace": namespace})  # hints name the file's namespace, too
    return await launch(inside, workspace, manifest, maps)


async def launch(
    options: argparse.Namespace,
    workspace: Workspace,
    manifest: Manifest,
    maps: Sequence[Manifest] = (),
) -> int:
    """Creates the run, and then prints it, follows it, or suggests to."""
    name = manifest["metadata"]["name"]
    run = await create_run(workspace, manifest, maps, is_dry_run=options.dry_run)
    if options.dry_run:
        _print(options.output, [*maps, as_manifest(run)])
        return Exit.OK
    if options.watch:
        return await follow(workspace, name, None, options)
    output.show(options.output, run, [next_step(options, name)])
    return Exit.OK


def _print(how: str, manifests: list[Manifest]) -> None:
    """For kubectl: several as YAML documents, or as a List in JSON."""
    if how != "json":
        print(output.to_yaml(*manifests), end="")
        return
    (*others, run) = manifests
    output.show(how, {"apiVersion": "v1", "kind": "List", "items": manifests} if others else run, ())


def _from_file(options: argparse.Namespace, changes: list[tuple[str, Any]]) -> tuple[Manifest, list[Manifest]]:
    manifest, maps = read_run_and_maps(options.file)
    metadata = manifest.get("metadata", {})
    source, written = title(options.file), metadata.get("namespace")
    if written and options.namespace and written != options.namespace:
        raise Failure(f"{source} is for namespace {written}, not for {options.namespace}", Exit.USAGE)
    spec = changed(manifest["spec"], changes)
    name = options.name or metadata.get("name") or ""
    if not name:
        raise Failure(f"{source}: the run has no name; give one with --name", Exit.USAGE)
    if problems := spec_problems(name, spec):
        applied = " with --set" if options.changes else ""
        raise Failure(f"{source}{applied}: {'; '.join(problems)}", Exit.USAGE)
    return {"metadata": {**metadata, "name": name}, "spec": spec}, maps


async def _from_environment(
    options: argparse.Namespace, workspace: Workspace, changes: list[tuple[str, Any]]
) -> Manifest:
    draft, refusals = await edited_draft(workspace, options.environment, changes)
    name = options.name or fresh_name(options.environment)
    spec = draft.run_spec()
    tried = {path for path, _ in changes}
    missing = [option for path, option in _REQUIRED.items() if value_in(spec, path) in (None, "") and path not in tried]
    refuse([f"the run needs {' and '.join(missing)}"] if missing else draft.problems(name), refusals)
    return {"metadata": {"name": name}, "spec": spec}


_REQUIRED: Final = {"model.name": "--model", "training.steps": "--steps"}


async def list_all(options: argparse.Namespace, workspace: Workspace) -> int:
    everywhere = options.all_namespaces
    items = await (workspace.all_namespaces("TrainingRun") if everywhere else all_runs(workspace))
    header = ["NAMESPACE"] * everywhere + ["NAME", "PHASE", "STEP", "REWARD", "TOK/S", "RESTARTS", "AGE"]
    body = [[run["metadata"]["namespace"]] * everywhere + _row(run) for run in items]
    empty = f"No runs in {'any namespace' if everywhere else workspace.namespace}."
    header, body = without_columns(header, body, page_width(), ("TOK/S", "RESTARTS", "AGE", "REWARD"))
    output.show(options.output, items, output.rows(header, body, empty))
    return Exit.OK


def _row(run: Object) -> list[str]:
    status = run.get("status", {})
    progress = progress_of(run)
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
    rewards = rewards_of(run)
    lines = view.live_view(run, list(rewards.values()), view.elapsed_seconds(run), page_width())
    if evaluations := view.evaluation_lines(run):
        lines += ["", *evaluations]
    if conditions := run.get("status", {}).get("conditions"):
        lines += ["", *view.condition_lines(conditions, run["status"].get("message", ""))]
    if commands := continuing(options, run, options.name):
        lines += ["", *commands]
    output.show(options.output, run, lines)
    return Exit.OK


async def results(options: argparse.Namespace, workspace: Workspace) -> int:
    run = await find_run(workspace, options.name)
    if not view.is_finished(run):
        phase = run.get("status", {}).get("phase", "Pending")
        output.note(f"run {options.name} is {phase}: these results are not final")
    status = run.get("status", {})
    data = {key: status.get(key) for key in ("phase", "message", "results", "progress", "history", "checkpoint")}
    fetch = hint(options, "run", "download", options.name)
    lines = [*view.results_view(run, fetch), *continuing(options, run, options.name)]
    output.show(options.output, {"name": options.name, **data}, lines)
    return Exit.OK


async def stop(options: argparse.Namespace, workspace: Workspace) -> int:
    await find_run(workspace, options.name)
    if options.suspend:
        again = hint(options, "run", "resume", options.name)
        return await _changed(options, workspace.suspend_run(options.name), f"is being suspended; to resume: {again}")
    return await _changed(options, workspace.stop_run(options.name), "is stopping, after a final checkpoint")


async def resume(options: argparse.Namespace, workspace: Workspace) -> int:
    await find_run(workspace, options.name)
    return await _changed(options, workspace.resume_run(options.name), "resumed")


async def _changed(options: argparse.Namespace, change: Awaitable[Object], outcome: str) -> int:
    try:
        run = await change
    except WrongStateError as error:
        raise Failure(str(error), Exit.REFUSED) from error
    output.show(options.output, run, [f"run {options.name} {outcome}"])
    return Exit.OK
