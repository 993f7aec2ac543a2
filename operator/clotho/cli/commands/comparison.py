"""`run compare`: the settings in which several runs differ, then their results side by side."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from clotho.cli.failure import Exit, Failure
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import output, view
from clotho.cli.terminal.screen import page_width
from clotho.workspace.objects import Workspace

Object = dict[str, Any]


async def compare(options: argparse.Namespace, workspace: Workspace) -> int:
    names = list(dict.fromkeys(options.names))
    if len(names) < 2:
        raise Failure("name two or more runs to compare", Exit.USAGE)
    runs = [await find_run(workspace, name) for name in names]
    results = {name: _results(run) for name, run in zip(names, runs, strict=True)}
    settings = differences([flat(run["spec"]) for run in runs])
    body = [[path, *map(_shown, values)] for path, values in settings.items()]
    lines = output.rows(["SETTING", *names], body, "All settings are equal.", page_width())
    lines += ["", *output.rows(["RESULT", *names], _by_row(results), "", page_width())]
    data = {"settings": {path: dict(zip(names, v, strict=True)) for path, v in settings.items()}, "results": results}
    output.show(options.output, data, lines)
    return Exit.OK


def _results(run: Object) -> dict[str, str]:
    status, progress = run.get("status", {}), view.progress_of(run)
    speed = progress.get("tokensPerSecond")
    return {
        "phase": status.get("phase", "Pending"),
        "step": f"{progress.get('step', 0)}/{run['spec']['training']['steps']}",
        "reward": view.number(progress.get("rewardMean")),
        "best reward": view.number(max(view.rewards_of(run).values(), default=None)),
        "loss": view.number(progress.get("loss"), 4),
        "tokens/s": f"{speed:.0f}" if speed else "-",
        "restarts": str(status.get("restarts", 0)),
        "time": view.duration(view.elapsed_seconds(run)),
    }


def _by_row(results: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    first = next(iter(results.values()))
    return [[key, *(each[key] for each in results.values())] for key in first]


def flat(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Leaves by their dotted paths; items of a list of named objects by their names."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        where = f"{path}.{key}" if path else key
        if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
            value = {each["name"]: {k: v for k, v in each.items() if k != "name"} for each in value}  # noqa: PLW2901
        if isinstance(value, dict) and value:
            leaves |= flat(value, where)
        else:
            leaves[where] = value
    return leaves


def differences(specs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Every path at which not all are equal, with each one's value; None where it has none."""
    paths = dict.fromkeys(path for spec in specs for path in spec)
    found = {path: [spec.get(path) for spec in specs] for path in paths}
    return {path: values for path, values in found.items() if any(value != values[0] for value in values)}


def _shown(value: Any) -> str:
    return "-" if value is None else output.compact(value)
