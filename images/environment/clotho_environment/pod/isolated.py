"""Runs untrusted code in a process of its own: an exit, a hang or a flood of output is then only a result."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clotho_environment.pod.secrets import child_variables

TAIL_BYTES: Final = 4096
LINE_LIMIT: Final = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """`code` is None when the time was up. `tail` is the end of what it printed."""

    code: int | None
    tail: str

    @property
    def last_output(self) -> str:
        lines = [line for line in self.tail.splitlines() if line.strip()]
        return f"last output: {lines[-1].strip()[:LINE_LIMIT]}" if lines else "no output"


async def run_isolated(command: Sequence[str], variables: Mapping[str, str], *, seconds: float) -> Outcome:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=child_variables(variables),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    tail = bytearray()
    reading = asyncio.create_task(_read_tail(process, tail))
    try:
        async with asyncio.timeout(seconds):
            code: int | None = await process.wait()
    except TimeoutError:
        code = None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the whole session: a helper would keep the pipe open
        await process.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reading, 5)
    return Outcome(code, tail.decode(errors="replace"))


async def _read_tail(process: asyncio.subprocess.Process, tail: bytearray) -> None:
    assert process.stdout is not None  # noqa: S101 - asked for above
    while chunk := await process.stdout.read(65536):
        tail += chunk
        del tail[:-TAIL_BYTES]
