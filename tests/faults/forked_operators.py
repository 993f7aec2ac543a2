"""Operators as processes of their own, forked from one that has imported everything: a start costs no import.

`python -m faults.forked_operators` is that process: a line of JSON on its input starts an operator, its pid comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import msgspec

from clotho_dev.cluster.process import die_with_parent

ROOT = Path(__file__).parents[2]
FOLDERS = ("operator", "images/contract", "tests", "dev")


class Start(msgspec.Struct, frozen=True):
    settings: dict[str, str]
    log: str


class ForkedOperator:
    def __init__(self, pid: int) -> None:
        self._pid = pid

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    @property
    def is_alive(self) -> bool:
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return False
        return True

    async def kill(self) -> None:
        """SIGKILL: no orderly shutdown."""
        self.send(signal.SIGKILL)
        while self.is_alive:  # noqa: ASYNC110 - the process that reaps it is another one
            await asyncio.sleep(0.005)


class ForkedOperators:
    """Used as an async context manager."""

    async def __aenter__(self) -> ForkedOperators:
        path = os.pathsep.join(str(ROOT / folder) for folder in FOLDERS)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "faults.forked_operators"),
            env={**os.environ, "PYTHONPATH": path},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        self._lock = asyncio.Lock()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def start(self, settings: dict[str, str], log: Path) -> ForkedOperator:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._lock:
            self._process.stdin.write(msgspec.json.encode(Start(settings, str(log))) + b"\n")
            await self._process.stdin.drain()
            return ForkedOperator(int(await self._process.stdout.readline()))


def serve() -> None:
    from clotho.manager import __main__ as operator

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends is reaped by the kernel
    for line in sys.stdin.buffer:
        start = msgspec.json.decode(line, type=Start)
        if (pid := os.fork()) == 0:
            _become_operator(start, operator.main)
        print(pid, flush=True)


def _become_operator(start: Start, main: object) -> None:
    assert callable(main)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()
    log = os.open(start.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.environ.update(start.settings)
    sys.argv = ["clotho-operator"]
    try:
        os._exit(main())
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


if __name__ == "__main__":
    serve()
