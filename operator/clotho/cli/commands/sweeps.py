"""`sweep`: creates the runs of a sweep, a limited number at once, and shows their results in one table."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from clotho.api.nesting import is_too_deep
from clotho.api.phases import FINISHED_PHASES
from clotho.authoring.sweep import SWEEP_LABEL, VALUES_ANNOTATION, Variant
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.documents import title
from clotho.cli.files.manifests import Manifest
from clotho.cli.files.sweep_files import SweepFile, read_sweep
from clotho.cli.session.creation import as_manifest, create_run
from clotho.cli.session.hints import hint
from clotho.cli.terminal import output, view
from clotho.cli.terminal.screen import page_width
from clotho.workspace.objects import Workspace
from clotho.workspace.progress import progress_of, rewards_of

Object = dict[str, Any]
POLL_SECONDS: Final = 5.0


async def start(options: argparse.Namespace, workspace: Workspace) -> int:
    """Runs that exist are left alone: the same command again continues an interrupted sweep."""
    file = read_sweep(options.file)
    namespace = file.metadata.get("namespace")
    if namespace and options.namespace and namespace != options.namespace:
        raise Failure(f"{title(options.file)}: its base is for namespace {namespace}", Exit.USAGE)
    workspace.namespace = namespace or workspace.namespace
    if options.dry_run:
        made = [await create_run(workspace, _manifest(file, each), is_dry_run=True) for each in file.variants]
        _print(options.output, [*file.maps, *map(as_manifest, made)])
        return Exit.OK
    try:
        await _create_all(workspace, file)
    except asyncio.CancelledError:
        output.note("the runs that exist continue; the same command again creates the others")
        raise
    table = hint(options, "sweep", "results", file.sweep.name, namespace=workspace.namespace)
    runs = await _runs_of(workspace, file.sweep.name)
    output.show(options.output, runs, [f"{_created(len(file.variants))}; results: {table}"])
    return Exit.OK


def _created(count: int) -> str:
    return "its run is created" if count == 1 else f"all {count} runs are created"


def _manifest(file: SweepFile, variant: Variant) -> Manifest:
    """Labels and annotations of the base stay."""
    own = variant.manifest(file.sweep.name)
    kept = {key: {**(file.metadata.get(key) or {}), **own["metadata"][key]} for key in ("labels", "annotations")}
    return {**own, "metadata": {**own["metadata"], **kept}}


def _print(how: str, manifests: list[Manifest]) -> None:
    if how == "json":
        output.show(how, {"apiVersion": "v1", "kind": "List", "items": manifests}, ())
    else:
        print(output.to_yaml(*manifests), end="")


async def _create_all(workspace: Workspace, file: SweepFile) -> None:
    waiting = list(file.variants)
    while True:
        runs = await _runs_of(workspace, file.sweep.name)
        existing = {run["metadata"]["name"] for run in runs}
        waiting = [each for each in waiting if each.name not in existing]
        for each in waiting[: _free_places(runs, file.sweep.limit, len(waiting))]:
            await create_run(workspace, _manifest(file, each), file.maps)
            waiting.remove(each)
            output.note(f"run {each.name} is created; {len(waiting)} more")
        if not waiting:
            return
        await asyncio.sleep(POLL_SECONDS)


def _free_places(runs: Iterable[Object], limit: int | None, wanted: int) -> int:
    active = sum(run.get("status", {}).get("phase") not in FINISHED_PHASES for run in runs)
    return wanted if limit is None else max(0, limit - active)


async def _runs_of(workspace: Workspace, sweep: str) -> list[Object]:
    return await workspace.all("TrainingRun", f"{SWEEP_LABEL}={sweep}")


async def results(options: argparse.Namespace, workspace: Workspace) -> int:
    """The best first."""
    runs = await _runs_of(workspace, options.name)
    if not runs:
        known = sorted(filter(None, {_sweep_of(run) for run in await workspace.all("TrainingRun")}))
        listing = f"; sweeps here: {', '.join(known)}" if known else ""
        raise Failure(f"no runs of sweep {options.name!r} in namespace {workspace.namespace}{listing}", Exit.NOT_FOUND)
    rows = sorted((_result(run) for run in runs), key=_rank)
    parameters = list(dict.fromkeys(name for row in rows for name in row["values"]))
    header = [*(name.rpartition(".")[2] for name in parameters), "PHASE", "STEP", "REWARD", "BEST", "RUN"]
    body = [[*(_shown(row["values"].get(name)) for name in parameters), *_figures(row), row["run"]] for row in rows]
    output.show(options.output, rows, output.rows(header, body, "", page_width()))
    return Exit.OK


def _sweep_of(run: Object) -> str:
    return str(run["metadata"].get("labels", {}).get(SWEEP_LABEL, ""))


def _result(run: Object) -> Object:
    progress = progress_of(run)
    return {
        "run": run["metadata"]["name"],
        "values": _values(run),
        "phase": run.get("status", {}).get("phase", "Pending"),
        "step": progress.get("step", 0),
        "steps": run["spec"]["training"]["steps"],
        "reward": progress.get("rewardMean"),
        "bestReward": max(rewards_of(run).values(), default=None),
    }


def _values(run: Object) -> Object:
    """Anyone may edit an annotation: what is not an object counts as none."""
    metadata = run["metadata"]
    try:
        values = json.loads(metadata.get("annotations", {}).get(VALUES_ANNOTATION, "{}"))
        is_readable = not is_too_deep(values)
    except RecursionError:
        is_readable = False
    except ValueError:
        return {}
    if not is_readable:
        output.note(f"run {metadata['name']}: the annotation {VALUES_ANNOTATION} is nested too deeply and is left out")
        return {}
    return values if isinstance(values, dict) else {}


def _rank(row: Object) -> tuple[bool, float, str]:
    reward = row["reward"]
    return reward is None, -(reward or 0.0), row["run"]


def _figures(row: Object) -> Sequence[str]:
    rewards = (view.number(row["reward"]), view.number(row["bestReward"]))
    return [row["phase"], f"{row['step']}/{row['steps']}", *rewards]


def _shown(value: Any) -> str:
    return "-" if value is None else output.compact(value)
