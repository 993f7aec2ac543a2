"""The ends of containers' logs, read with a limit on time and size."""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from clotho.cluster.client import ApiClient
from clotho.cluster.outcomes import ApiError, Transient
from clotho.plan.pods import Pod
from clotho.plan.run.leaving import containers_with_logs

log = logging.getLogger(__name__)
TAIL_LINES: Final = "250"  # a line of more than 16 KiB counts as several on the node
MOST_READ_BYTES: Final = 4 * 1024 * 1024
LOG_SECONDS: Final = 3.0
SILENT_NODE_SECONDS: Final = 60.0


class Logs(Struct, frozen=True):
    texts: dict[tuple[str, str], str]  # by the pod's uid and the container
    missing: frozenset[str]  # pods with a log that could not be read now, but perhaps later


class PodLogs:
    """A node that let a request time out is left alone for a while: a thousand runs on it do not wait one by one."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._silent_nodes: dict[str, float] = {}  # until when they are not asked

    async def read(self, pods: Iterable[Pod]) -> Logs:
        wanted = [(pod, each.name) for pod in pods for each in containers_with_logs(pod)]
        found = await asyncio.gather(*(self._read(pod, name) for pod, name in wanted))
        each = [(pod.uid, name, *outcome) for (pod, name), outcome in zip(wanted, found, strict=True)]
        return Logs(
            texts={(uid, name): text for uid, name, text, _ in each if text},
            missing=frozenset(uid for uid, _, _, may_follow in each if may_follow),
        )

    async def _read(self, pod: Pod, container: str) -> tuple[str, bool]:
        """The text, and whether there may be more of it later."""
        node = pod.spec.node_name
        if time.monotonic() < self._silent_nodes.get(node, 0.0):
            return "", True
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.name}/log"
        body, may_follow = b"", False
        try:
            async with asyncio.timeout(LOG_SECONDS):
                async for piece in self._client.stream(path, {"container": container, "tailLines": TAIL_LINES}):
                    body += piece
                    if len(body) > MOST_READ_BYTES:
                        break
        except (TimeoutError, ApiError) as error:
            may_follow = isinstance(error, TimeoutError | Transient)
            if isinstance(error, TimeoutError):
                self._silent_nodes[node] = time.monotonic() + SILENT_NODE_SECONDS
            problem = str(error) or f"no answer within {LOG_SECONDS:g} s"
            log.info("the log of %s/%s was not read: %s", pod.metadata.namespace, pod.name, problem)
        return body.decode(errors="replace"), may_follow
