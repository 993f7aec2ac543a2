"""Destroys pods of a run, and records which."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from e2e.product.runs import Object, Runs


@dataclass
class Killer:
    """Destroys one pod of a run at a time, and records what it destroyed."""

    runs: Runs
    run: str
    killed: list[str] = field(default_factory=list)  # uids of pods, one for each kill

    def delete_pod(self, component: str) -> None:
        pod = self._pod(component)
        self.runs.kubectl.run(
            "delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force", "--wait=false"
        )  # fmt: skip
        self.killed.append(pod["metadata"]["uid"])

    def kill_process(self, component: str, host: str = "") -> None:
        """As the kernel's OOM killer would: SIGKILL to the first process of the pod's container."""
        pod = self._pod(component, host)
        (container,) = pod["status"]["containerStatuses"]
        group = container["containerID"].removeprefix("containerd://")
        os.kill(min(_processes(group)), signal.SIGKILL)
        self.killed.append(pod["metadata"]["uid"])

    def _pod(self, component: str, host: str = "") -> Object:
        (pod,) = [pod for pod in self.runs.pods(self.run, component) if host in ("", pod["spec"].get("hostname"))]
        return pod


def _processes(group: str) -> list[int]:
    """Of one container, whose control group carries its id; pods of other clusters and runs have other ids."""
    found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cgroup") if group in _text(path)]
    assert found, f"no process in container {group}"
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
