"""The logs of a run's pods, line by line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from clotho.api.names import COMPONENT_LABEL, ENVIRONMENT_LABEL, INDEX_LABEL, INFERENCE
from clotho.workspace.objects import Workspace

MAIN: Final = "main"  # the container that does the work, in every pod of a run


def component_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["labels"].get(COMPONENT_LABEL, ""))


def pod_title(pod: Mapping[str, Any]) -> str:
    """`trainer`, `trainer-1`, `api-server`, `inference-0`, or an environment's name and index."""
    labels = pod["metadata"]["labels"]
    index = labels.get(INDEX_LABEL, "0")
    if environment := labels.get(ENVIRONMENT_LABEL):
        return f"{environment}-{index}"
    has_number = index != "0" or component_of(pod) == INFERENCE
    return f"{component_of(pod)}-{index}" if has_number else component_of(pod)


async def read_log(
    workspace: Workspace,
    pod: Mapping[str, Any],
    *,
    follow: bool = False,
    since: int | None = None,
    tail: int | None = None,
) -> AsyncIterator[bytes]:
    params = {"container": MAIN}
    params |= {"follow": "true"} if follow else {}
    params |= {"sinceSeconds": str(since)} if since else {}
    params |= {"tailLines": str(tail)} if tail else {}
    rest = b""
    async for piece in workspace.client.stream(workspace.core(f"pods/{pod['metadata']['name']}/log"), params):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
