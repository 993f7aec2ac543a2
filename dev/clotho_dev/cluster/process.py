"""Long-running components: start, wait for readiness, report the one that died, stop."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clotho_dev.cluster.failure import ClusterError

PR_SET_PDEATHSIG = 1
TAIL_LINES = 12
STOP_GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class Component:
    """One program of the cluster, with its readiness check."""

    name: str
    argv: Sequence[str]
    is_ready: Callable[[], bool] = lambda: True
    descriptors: tuple[int, ...] = ()  # sockets it inherits


@dataclass
class Running:
    component: Component
    process: subprocess.Popen[bytes]
    log: Path
    started: float
    ready_after: float | None = None


class Processes:
    """The components of one cluster, in the order they were started."""

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.logs = logs
        self.running: list[Running] = []

    def start(self, component: Component) -> None:
        log = self.logs / f"{component.name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                component.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=component.descriptors,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - started from the main thread only
            )
        self.running.append(Running(component, process, log, time.monotonic()))

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait for every component that has been started; raise as soon as one of them dies."""
        deadline = time.monotonic() + timeout
        waiting = [entry for entry in self.running if entry.ready_after is None]
        while waiting:
            self.raise_if_dead()
            for entry in waiting:
                if entry.component.is_ready():
                    entry.ready_after = time.monotonic() - entry.started
            waiting = [entry for entry in waiting if entry.ready_after is None]
            if waiting and time.monotonic() > deadline:
                late = waiting[0]
                raise ClusterError(f"{late.component.name} did not become ready in {timeout:.0f} s{_tail(late.log)}")
            if waiting:
                time.sleep(0.05)

    def raise_if_dead(self) -> None:
        for entry in self.running:
            if (code := entry.process.poll()) is not None:
                raise ClusterError(f"{entry.component.name} died ({_exit(code)}){_tail(entry.log)}")

    def stop(self) -> None:
        """In reverse order; a process that does not exit in time is killed."""
        for entry in reversed(self.running):
            with contextlib.suppress(ProcessLookupError):
                entry.process.terminate()
        deadline = time.monotonic() + STOP_GRACE_SECONDS
        for entry in reversed(self.running):
            try:
                entry.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                entry.process.kill()
                entry.process.wait()
        self.running.clear()

    def kill(self) -> None:
        """For what has nothing to save: an API server takes its whole grace period to end its watches."""
        for entry in self.running:
            entry.process.kill()
        self.stop()


def in_network_of(pid: int | None) -> list[str]:
    """What precedes a command that runs in the network namespace of that process; None: of this one."""
    return [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net"]


def die_with_parent() -> None:
    """A killed parent must not leave components behind (Linux only; elsewhere only `stop` ends them)."""
    os.setpgid(0, 0)  # Ctrl-C in the terminal is the parent's to handle
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    return f"; the end of {log}:\n" + "\n".join(f"  {line}" for line in lines)
