"""`run logs`: the log lines of a run's pods, each with the component it comes from."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from clotho.cli.failure import Exit, Failure
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import output
from clotho.cluster.outcomes import ApiError
from clotho.workspace.log_lines import as_json, readable
from clotho.workspace.logs import component_of, pod_title, read_log
from clotho.workspace.objects import Workspace


async def logs(options: argparse.Namespace, workspace: Workspace) -> int:
    await find_run(workspace, options.name)
    pods = [pod for pod in await workspace.pods_of(options.name) if options.component in (None, component_of(pod))]
    if not pods:
        what = f"{options.component} pod" if options.component else "pod"
        raise Failure(f"run {options.name} has no {what} now; a finished run keeps only its trainer's", Exit.NOT_FOUND)
    if options.follow:
        await asyncio.gather(*(_print(pod, options, workspace) for pod in pods))
    else:
        for pod in pods:
            await _print(pod, options, workspace)
    return Exit.OK


async def _print(pod: dict[str, Any], options: argparse.Namespace, workspace: Workspace) -> None:
    title = pod_title(pod)
    lines = read_log(workspace, pod, follow=options.follow, since=options.since, tail=options.tail)
    try:
        async for line in lines:
            text = line.decode(errors="replace")
            if options.output == "json":
                print(as_json(title, text), flush=True)
                continue
            for each in readable(text):
                print(f"{title}  {output.printable(each)}", flush=True)
    except ApiError as error:  # a pod that has not started does not hide the logs of the others
        output.note(f"{title}: {error.message}")
