"""`run logs`: what the pods of a run print, each line marked with its pod's part."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

from clotho.api.names import COMPONENT_LABEL, ENVIRONMENT_LABEL, INDEX_LABEL
from clotho.cli.failure import Exit, Failure
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import output
from clotho.cluster.outcomes import ApiError
from clotho.workspace.objects import Workspace

MAIN: Final = "main"  # the container that does the work, in every pod of a run


async def logs(options: argparse.Namespace, workspace: Workspace) -> int:
    await find_run(workspace, options.name)
    pods = [pod for pod in await workspace.pods_of(options.name) if options.component in (None, _component(pod))]
    if not pods:
        what = f"{options.component} pod" if options.component else "pod"
        raise Failure(f"run {options.name} has no {what} now; finished runs keep only their trainer's", Exit.NOT_FOUND)
    if options.follow:
        await asyncio.gather(*(_print(pod, options, workspace) for pod in pods))
    else:
        for pod in pods:
            await _print(pod, options, workspace)
    return Exit.OK


def _component(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"].get(COMPONENT_LABEL, ""))


def _mark(pod: dict[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    if environment := labels.get(ENVIRONMENT_LABEL):
        return f"{environment}-{labels.get(INDEX_LABEL, '0')}"
    return _component(pod)


async def _print(pod: dict[str, Any], options: argparse.Namespace, workspace: Workspace) -> None:
    params = {"container": MAIN} | ({"follow": "true"} if options.follow else {})
    if options.tail:
        params["tailLines"] = str(options.tail)
    mark, rest = _mark(pod), b""
    try:
        async for piece in workspace.client.stream(workspace.core(f"pods/{pod['metadata']['name']}/log"), params):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                _line(mark, line)
    except ApiError as error:  # one pod that is not there yet keeps no other from being heard
        output.note(f"{mark}: {error.message}")
    if rest:
        _line(mark, rest)


def _line(mark: str, line: bytes) -> None:
    print(f"{mark}  {output.printable(line.decode(errors='replace'))}", flush=True)
