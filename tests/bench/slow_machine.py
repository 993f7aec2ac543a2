"""A slow machine for each rank on one computer: a control group that gets a fixed share of a core, busy or idle."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Measurement = TypeVar("Measurement")

_MOUNT = Path("/sys/fs/cgroup")
_PERIOD = 10_000  # microseconds: short beside a decode step
MOST_STOLEN = 0.1  # cores that the host may take during a measurement
_PATIENCE = 600.0  # seconds
_PRECEDENCE = 100  # against what else runs here: a share is of use only where it can be had


@dataclass(frozen=True)
class SlowMachine:
    """At full speed until `slow_down`, so that processes start quickly."""

    group: Path
    is_unified: bool  # cgroup v2

    @classmethod
    def make(cls, group: Path, *, is_unified: bool) -> "SlowMachine":
        group.mkdir()
        name, usual = ("cpu.weight", 100) if is_unified else ("cpu.shares", 1024)
        (group / name).write_text(str(_PRECEDENCE * usual))
        return cls(group, is_unified)

    def add(self, pid: int) -> None:
        (self.group / "cgroup.procs").write_text(str(pid))

    def slow_down(self, share: float) -> None:
        self._limit(str(int(share * _PERIOD)))

    def speed_up(self) -> None:
        self._limit("max" if self.is_unified else "-1")

    def _limit(self, quota: str) -> None:
        if self.is_unified:
            (self.group / "cpu.max").write_text(f"{quota} {_PERIOD}")
        else:
            (self.group / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (self.group / "cpu.cfs_quota_us").write_text(quota)


@contextmanager
def slow_machines(count: int) -> Iterator[list[SlowMachine]]:
    """Their processes have to end first."""
    hierarchy, is_unified = _cpu_hierarchy()
    with ExitStack() as stack:
        machines = []
        for index in range(count):
            group = hierarchy / f"clotho-bench-{os.getpid()}-{index}"
            machines.append(SlowMachine.make(group, is_unified=is_unified))
            stack.callback(_remove, group)
        yield machines


def stolen_seconds() -> float:
    """Of all cores together, since this machine started: what its host gave to other guests."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def undisturbed(measure: Callable[[], Measurement]) -> Measurement:
    """Once the host leaves the machine alone, and again where it did not do so until the end."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        is_calm, _ = _observed(lambda: time.sleep(1))
        if is_calm:
            is_calm, found = _observed(measure)
            if is_calm:
                return found
    raise SystemExit(f"the host of this machine took more than {MOST_STOLEN} cores for {_PATIENCE:.0f} s")


def _observed(work: Callable[[], Measurement]) -> tuple[bool, Measurement]:
    """Whether the host left the machine alone meanwhile."""
    began, stolen = time.monotonic(), stolen_seconds()
    found = work()
    return stolen_seconds() - stolen <= MOST_STOLEN * (time.monotonic() - began), found


def _remove(group: Path) -> None:
    with suppress(OSError):  # an empty group that stays behind costs nothing
        group.rmdir()


def _cpu_hierarchy() -> tuple[Path, bool]:
    if os.geteuid():
        raise SystemExit("ranks get their share of a core by control groups: run this as root")
    if (_MOUNT / "cpu" / "cpu.cfs_quota_us").exists():
        return _MOUNT / "cpu", False
    try:
        (_MOUNT / "cgroup.subtree_control").write_text("+cpu")
    except OSError as error:
        raise SystemExit(f"{_MOUNT} has no CPU controller that can be used: {error}") from error
    return _MOUNT, True
