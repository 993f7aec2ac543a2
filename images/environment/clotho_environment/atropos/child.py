"""An Atropos environment as a child process: a session of its own, a readable log, no secrets."""

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from clotho_contract.lines import lines_of
from clotho_environment.pod.secrets import child_variables

log = logging.getLogger(__name__)

LINE_LIMIT: Final = 1024**2  # a longer one is dropped
LONGEST_LINE: Final = 4096  # a longer one is cut
_LEVEL: Final = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_NOISE: Final = re.compile(
    r"env_manager: Status dict|max_num_workers: |HTTP Request: |Scores are the same in a group"
    r"|^\s+\w+=|^\s*\w*Config\($|^\s*[\[\])]+,?$"  # the config, printed field by field
)
_FAILURE: Final = re.compile(
    r"Error in (collect_trajectories|scoring|handle_send_to_api)|Scoring exception|Task exception was never"
    r"|Failed to send (single|\d+) ScoredDataGroup"
)
_NUMBERS: Final = re.compile(r"\d+")


class ChildOutput:
    """Filters the child's output: noise is dropped, repetitions are counted, the last lines are kept."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self.tail: deque[str] = deque(maxlen=20)
        self.failures = 0
        self.last_failure = ""

    def add(self, line: str) -> None:
        line = line[:LONGEST_LINE].rstrip()
        if not line or _NOISE.search(line):
            return
        self.tail.append(line)
        if _FAILURE.search(line):
            self.failures += 1
            self.last_failure = line
        level = _LEVEL.search(line[:200])
        kind = _NUMBERS.sub("#", line)
        if len(self._seen) < 10_000:
            self._seen[kind] += 1
        count = self._seen[kind]
        if count & (count - 1) == 0:  # the first time, the second, fourth, eighth, ...
            number = logging.getLevelNamesMapping()[level[1]] if level else logging.INFO
            log.log(number, "%s", line, extra={"repeated": count} if count > 1 else {})

    def last_line(self) -> str:
        return self.tail[-1] if self.tail else "no output"


class Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.output = ChildOutput()
        self._reading = asyncio.create_task(_read_lines(process, self.output), name="child output")

    async def wait(self) -> int:
        return await self._process.wait()

    async def drain(self) -> None:
        """Read what is left; a helper that outlives the child must not keep the pipe open for ever."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reading, 5)

    async def stop(self, grace_seconds: float) -> None:
        """The whole session: environments start helpers of their own."""
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
                    return


@asynccontextmanager
async def child_process(
    command: Sequence[str], extra: Mapping[str, str], *, grace_seconds: float
) -> AsyncIterator[Child]:
    """Started on entry, gone on exit whatever happens."""
    plain = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "NO_COLOR": "1"}
    process = await asyncio.create_subprocess_exec(
        *command,
        env=child_variables(plain | dict(extra)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=LINE_LIMIT,
    )
    child = Child(process)
    try:
        yield child
    finally:
        await child.stop(grace_seconds)
        await child.drain()


async def _read_lines(process: asyncio.subprocess.Process, output: ChildOutput) -> None:
    assert process.stdout is not None  # noqa: S101 - asked for above
    async for line in lines_of(process.stdout):
        output.add(line)
