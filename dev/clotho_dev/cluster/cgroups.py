"""The control group that holds all pods of a cluster, in either version of the kernel's hierarchy."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")


def root_of(name: str) -> str:
    """As the kubelet names it: a path from the top of every hierarchy."""
    return f"/clotho-{name}"


def create(name: str) -> None:
    for hierarchy in _hierarchies():
        group = hierarchy / root_of(name).lstrip("/")
        group.mkdir(exist_ok=True)
        if (hierarchy / "cpuset.mems").exists():  # a new cpuset starts empty
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((hierarchy / file).read_text())
    if _is_unified():
        controllers = (MOUNT / "cgroup.controllers").read_text().split()
        for controller in controllers:
            with contextlib.suppress(OSError):
                (MOUNT / "cgroup.subtree_control").write_text(f"+{controller}")
                (MOUNT / root_of(name).lstrip("/") / "cgroup.subtree_control").write_text(f"+{controller}")


def remove(name: str, timeout: float = 10.0) -> None:
    """Groups go bottom up, and only when their processes are gone, which the kernel may need a moment for."""
    deadline = time.monotonic() + timeout
    for hierarchy in _hierarchies():
        top = hierarchy / root_of(name).lstrip("/")
        while top.exists():
            for group in sorted(_groups(top), key=lambda path: len(path.parts), reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()
            if time.monotonic() > deadline:
                break
            if top.exists():
                time.sleep(0.05)


def _groups(top: Path) -> list[Path]:
    return [top, *(path for path in top.rglob("*") if path.is_dir())]


def _is_unified() -> bool:
    return (MOUNT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if _is_unified():
        return [MOUNT]
    return [
        path for path in MOUNT.iterdir() if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists()
    ]
