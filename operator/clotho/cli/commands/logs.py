"""`run logs`: the log lines of a run's pods, each with the component it comes from; of pods that are gone, the last."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from clotho.api.history import KeptLog
from clotho.cli.failure import Exit, Failure
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import output
from clotho.cluster.outcomes import ApiError
from clotho.workspace.history import component_of_title, kept_logs_of, of_last_attempt
from clotho.workspace.log_lines import as_json, not_older, readable
from clotho.workspace.logs import MAIN, component_of, pod_title, read_log
from clotho.workspace.objects import Workspace

Object = dict[str, Any]


async def logs(options: argparse.Namespace, workspace: Workspace) -> int:
    run = await find_run(workspace, options.name)
    now = run.get("status", {}).get("attempt", 0)
    is_earlier = options.attempt is not None and options.attempt != now
    pods = [] if is_earlier else await workspace.pods_of(options.name)
    pods = [pod for pod in pods if options.component in (None, component_of(pod))]
    kept = [] if options.follow and pods else _without(pods, await kept_logs_of(workspace, run), options)
    if not pods and not kept:
        raise Failure(_nothing(options), Exit.NOT_FOUND)
    for log in kept:
        _print_kept(log, options)
    if options.follow:
        await asyncio.gather(*(_print(pod, options, workspace) for pod in pods))
    else:
        for pod in pods:
            await _print(pod, options, workspace)
    return Exit.OK


def _without(pods: Sequence[Object], kept: Sequence[KeptLog], options: argparse.Namespace) -> list[KeptLog]:
    """Of the attempt that was asked for, else of the last one: what was kept of pods that do not exist any more."""
    asked = (
        of_last_attempt(kept) if options.attempt is None else [log for log in kept if log.attempt == options.attempt]
    )
    present = {pod_title(pod) for pod in pods}
    return [log for log in asked if log.title not in present and _is_of(log, options.component)]


def _is_of(log: KeptLog, component: str | None) -> bool:
    return component in (None, component_of_title(log.title))


def _nothing(options: argparse.Namespace) -> str:
    what = f"{options.component} pod" if options.component else "pod"
    if options.attempt is not None:
        return f"no log of a {what} is kept of attempt {options.attempt} of run {options.name}"
    return f"run {options.name} has no {what} now, and no log of one is kept"


def _print_kept(log: KeptLog, options: argparse.Namespace) -> None:
    title = log.title if log.container == MAIN else f"{log.title}/{log.container}"
    lines: Sequence[str] = log.text.splitlines()
    if options.since:
        lines = not_older(lines, datetime.now(UTC) - timedelta(seconds=options.since))
    for line in lines[-options.tail :] if options.tail else lines:
        _print_line(title, line, options)


async def _print(pod: Object, options: argparse.Namespace, workspace: Workspace) -> None:
    title = pod_title(pod)
    lines = read_log(workspace, pod, follow=options.follow, since=options.since, tail=options.tail)
    try:
        async for line in lines:
            _print_line(title, line.decode(errors="replace"), options)
    except ApiError as error:  # a pod that has not started does not hide the logs of the others
        output.note(f"{title}: {error.message}")


def _print_line(title: str, line: str, options: argparse.Namespace) -> None:
    if options.output == "json":
        print(as_json(title, line), flush=True)
        return
    for each in readable(line):
        print(f"{title}  {output.printable(each)}", flush=True)
