"""The end of a container's log: of a pod that is there, or what was kept of one that is gone."""

from collections import deque
from typing import Any, Final

from clotho.api.history import KeptLog
from clotho.api.names import UID_LABEL
from clotho.cluster.client import ApiClient, Object
from clotho.cluster.outcomes import ApiError, Forbidden, NotFound
from clotho.web.pages import RunName
from clotho.workspace.history import kept_logs_of
from clotho.workspace.log_lines import readable
from clotho.workspace.logs import MAIN, pod_title
from clotho.workspace.objects import Workspace

MOST_LINES: Final = 400
LONGEST_LINE: Final = 4_000  # bytes
MOST_BYTES: Final = 64 * 1024**2  # read for them
POD: Final = "pod/"


class Tail:
    """The last lines of what was pushed; a longer line is cut while it arrives."""

    def __init__(self, most: int = MOST_LINES, longest: int = LONGEST_LINE) -> None:
        self._lines: deque[tuple[bytes, int]] = deque(maxlen=most)
        self._longest = longest
        self._last, self._length = b"", 0

    def push(self, piece: bytes) -> None:
        *whole, rest = piece.split(b"\n")
        for line in whole:
            self._grow(line)
            self._lines.append((self._last, self._length))
            self._last, self._length = b"", 0
        self._grow(rest)

    def _grow(self, more: bytes) -> None:
        self._last += more[: self._longest - len(self._last)]
        self._length += len(more)

    def lines(self) -> list[str]:
        found = [*self._lines, *([(self._last, self._length)] if self._length else [])]
        return [_text(line, length) for line, length in found]


def _text(line: bytes, length: int) -> str:
    note = f" … {length - len(line):,} more bytes" if length > len(line) else ""
    return line.decode(errors="replace") + note


async def run_logs(client: ApiClient, name: RunName, chosen: str) -> dict[str, Any]:
    """`chosen`: the key of a source; empty or unknown takes the trainer's newest."""
    workspace = Workspace(client, name.namespace)
    run = await workspace.get("TrainingRun", name.name)
    pods = {f"{POD}{pod['metadata']['name']}": pod for pod in await _pods(workspace, run)}
    kept = {log.key: log for log in reversed(await kept_logs_of(workspace, run))}
    sources: list[dict[str, Any]] = []
    sources += [{"key": key, "title": pod_title(pod), "attempt": None} for key, pod in pods.items()]
    sources += [{"key": key, "title": log.title, "attempt": log.attempt} for key, log in kept.items()]
    if chosen not in (*pods, *kept):
        ordered = sorted(sources, key=lambda source: not str(source["title"]).startswith("trainer"))
        chosen = str(ordered[0]["key"]) if ordered else ""
    lines = await _lines(workspace, pods.get(chosen), kept.get(chosen))
    return {"sources": sources, "chosen": chosen, "lines": [part for line in lines for part in readable(line)]}


async def _pods(workspace: Workspace, run: Object) -> list[Object]:
    try:
        pods = await workspace.pods_of(run["metadata"]["name"])
    except Forbidden:
        return []
    return [pod for pod in pods if pod["metadata"]["labels"].get(UID_LABEL) == run["metadata"]["uid"]]


async def _lines(workspace: Workspace, pod: Object | None, kept: KeptLog | None) -> list[str]:
    if kept is not None:
        return kept.text.splitlines()
    if pod is None:
        return []
    tail, size = Tail(), 0
    path = workspace.core(f"pods/{pod['metadata']['name']}/log")
    try:
        async for piece in workspace.client.stream(path, {"container": MAIN, "tailLines": str(MOST_LINES)}):
            tail.push(piece)
            size += len(piece)
            if size > MOST_BYTES:
                break
    except NotFound:
        return []
    except ApiError as error:  # not started yet, or its node does not answer
        return [*tail.lines(), f"The log cannot be read: {error.message}"]
    return tail.lines()
