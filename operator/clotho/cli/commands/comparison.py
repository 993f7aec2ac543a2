"""`run compare`: the settings in which several runs differ, then their results side by side."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from clotho.authoring.differences import differences, flat
from clotho.cli.commands.copies import plain_spec
from clotho.cli.failure import Exit, Failure
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import output, view
from clotho.cli.terminal.screen import page_width
from clotho.workspace.objects import Workspace
from clotho.workspace.progress import progress_of, rewards_of

Object = dict[str, Any]


async def compare(options: argparse.Namespace, workspace: Workspace) -> int:
    names = list(dict.fromkeys(options.names))
    if len(names) < 2:
        raise Failure("name two or more runs to compare", Exit.USAGE)
    runs = [await find_run(workspace, name) for name in names]
    results = {name: _results(run) for name, run in zip(names, runs, strict=True)}
    settings = differences([flat(plain_spec(run)) for run in runs])
    body = [[path, *map(_shown, values)] for path, values in settings.items()]
    lines = output.rows(["SETTING", *names], body, "All settings are equal.", page_width())
    lines += ["", *output.rows(["RESULT", *names], _by_row(results), "", page_width())]
    data = {"settings": {path: dict(zip(names, v, strict=True)) for path, v in settings.items()}, "results": results}
    output.show(options.output, data, lines)
    return Exit.OK


def _results(run: Object) -> dict[str, str]:
    status, progress = run.get("status", {}), progress_of(run)
    speed = progress.get("tokensPerSecond")
    return {
        "phase": status.get("phase", "Pending"),
        "step": f"{progress.get('step', 0)}/{run['spec']['training']['steps']}",
        "reward": view.number(progress.get("rewardMean")),
        "best reward": view.number(max(rewards_of(run).values(), default=None)),
        "loss": view.number(progress.get("loss"), 4),
        "tokens/s": f"{speed:.0f}" if speed else "-",
        "restarts": str(status.get("restarts", 0)),
        "time": view.duration(view.elapsed_seconds(run)),
    }


def _by_row(results: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    first = next(iter(results.values()))
    return [[key, *(each[key] for each in results.values())] for key in first]


def _shown(value: Any) -> str:
    return "-" if value is None else output.compact(value)
