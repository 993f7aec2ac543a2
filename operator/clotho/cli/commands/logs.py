"""`run logs`: the log lines of a run's pods, each with the component it comes from; of pods that are gone, the last."""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from clotho.api.history import KeptLog
from clotho.cli.failure import Exit, Failure
from clotho.cli.session.lookup import find_run, find_run_patiently
from clotho.cli.terminal import output, view
from clotho.cluster.outcomes import ApiError, Transient
from clotho.workspace.history import component_of_title, kept_logs_of, of_last_attempt
from clotho.workspace.log_lines import as_json, not_older, readable
from clotho.workspace.logs import MAIN, component_of, pod_title, read_log
from clotho.workspace.objects import Workspace

Object = dict[str, Any]
POLL_SECONDS: Final = 1.0


async def logs(options: argparse.Namespace, workspace: Workspace) -> int:
    run = await find_run(workspace, options.name)
    now = run.get("status", {}).get("attempt", 0)
    is_earlier = options.attempt is not None and options.attempt != now
    if options.follow and not is_earlier and not view.is_finished(run):
        return await _follow(options, workspace)
    pods = [] if is_earlier else await _pods(options, workspace)
    kept = _without({pod_title(pod) for pod in pods}, await kept_logs_of(workspace, run), options)
    if not pods and not kept:
        raise Failure(_nothing(options), Exit.NOT_FOUND)
    for log in kept:
        _print_kept(log, options)
    for pod in pods:
        try:
            async for line in read_log(workspace, pod, since=options.since, tail=options.tail):
                _print_line(pod_title(pod), line.decode(errors="replace"), options)
        except ApiError as error:  # a pod that has not started does not hide the logs of the others
            output.note(f"{pod_title(pod)}: {error.message}")
    return Exit.OK


async def _follow(options: argparse.Namespace, workspace: Workspace) -> int:
    """All pods as they start and are replaced, until the run has finished."""
    following, noted = _Following(options, workspace), ""
    try:
        while True:
            run = await find_run_patiently(workspace, options.name)  # before its pods: the last ones are not missed
            following.add(await _pods(options, workspace))
            if view.is_finished(run):
                break
            if not following.is_reading and (message := _message(run)) != noted:
                noted = message
                output.note(message)
            await following.pause(POLL_SECONDS)
        await following.finish()
    finally:
        await following.cancel()
    for log in _without(following.titles, await kept_logs_of(workspace, run), options):  # of a failed init container
        _print_kept(log, options)
    output.note(_message(run))
    return Exit.OK


def _message(run: Object) -> str:
    return str(run.get("status", {}).get("message", ""))


class _Following:
    """Reads the log of each pod once its main container has started, and again where the connection was lost."""

    def __init__(self, options: argparse.Namespace, workspace: Workspace) -> None:
        self._options, self._workspace = options, workspace
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by the pod's uid
        self._read_at: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        self.titles: set[str] = set()

    @property
    def is_reading(self) -> bool:
        return not all(task.done() for task in self._tasks.values())

    def add(self, pods: Sequence[Object]) -> None:
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid not in self._tasks and _has_started(pod):
                self.titles.add(pod_title(pod))
                self._tasks[uid] = asyncio.create_task(self._read(uid, pod))

    async def _read(self, uid: str, pod: Object) -> None:
        title, since, tail = pod_title(pod), self._options.since, self._options.tail
        if uid in self._read_at:
            since, tail = math.ceil(time.monotonic() - self._read_at[uid]), None
        try:
            async for line in read_log(self._workspace, pod, follow=True, since=since, tail=tail):
                _print_line(title, line.decode(errors="replace"), self._options)
                self._read_at[uid] = time.monotonic()
        except ApiError as error:
            if self._problems.get(uid) != error.message:
                output.note(f"{title}: {error.message}")
            self._problems[uid] = error.message
            if isinstance(error, Transient):
                del self._tasks[uid]

    async def pause(self, seconds: float) -> None:
        """Raises what ended a task, such as a pipe that was closed."""
        await asyncio.sleep(seconds)
        for task in self._tasks.values():
            if task.done():
                task.result()

    async def finish(self) -> None:
        await asyncio.gather(*self._tasks.values())

    async def cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _has_started(pod: Object) -> bool:
    containers = pod.get("status", {}).get("containerStatuses", ())
    states = [each.get("state", {}) for each in containers if each["name"] == MAIN]
    return any("running" in state or "terminated" in state for state in states)


async def _pods(options: argparse.Namespace, workspace: Workspace) -> list[Object]:
    pods = await workspace.pods_of(options.name)
    return [pod for pod in pods if options.component in (None, component_of(pod))]


def _without(titles: Collection[str], kept: Sequence[KeptLog], options: argparse.Namespace) -> list[KeptLog]:
    """Of the attempt that was asked for, else of the last one: what was kept of pods that were not read."""
    asked = (
        of_last_attempt(kept) if options.attempt is None else [log for log in kept if log.attempt == options.attempt]
    )
    return [log for log in asked if log.title not in titles and _is_of(log, options.component)]


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


def _print_line(title: str, line: str, options: argparse.Namespace) -> None:
    if options.output == "json":
        print(as_json(title, line), flush=True)
        return
    for each in readable(line):
        print(f"{title}  {output.printable(each)}", flush=True)
