"""The folder of one cluster: everything it writes, and what it says about itself while it runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clotho_dev.cluster.binaries import cache_folder


@dataclass(frozen=True)
class ComponentState:
    name: str
    alive: bool
    ready_after: float | None = None


@dataclass(frozen=True)
class ClusterState:
    """`phase` is starting, ready or failed; `message` is for people."""

    phase: str
    message: str = ""
    components: tuple[ComponentState, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """What `up` was asked for; written down so that the daemon and a later `up` agree."""

    profile: str
    port: int
    gpus: int = 0
    egress: bool = False
    audit: bool = False
    images: str = ""  # the folder of containerd's store, which a second node must not share


class Folder:
    def __init__(self, name: str) -> None:
        self.name = name
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        self.path = base / "clotho" / "clusters" / name

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def inside_kubeconfig(self) -> Path:
        """For those who live in the cluster's network namespace, where the API server has its own port."""
        return self.path / "inside.kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        return self.path / "containerd.sock"

    @property
    def volumes(self) -> Path:
        return self.path / "volumes"

    @property
    def containerd_root(self) -> Path:
        """In the cache: images stay when the cluster goes, so that the next one need not import them again."""
        return cache_folder() / "containerd"

    def siblings(self) -> list[Folder]:
        return [Folder(path.name) for path in self.path.parent.glob("*") if path.is_dir() and path.name != self.name]

    def write_options(self, options: Options) -> None:
        self._write("options.json", asdict(options))

    def read_options(self) -> Options:
        return Options(**json.loads((self.path / "options.json").read_text()))

    def write_state(self, state: ClusterState) -> None:
        self._write("state.json", asdict(state))

    def read_state(self) -> ClusterState | None:
        try:
            raw = json.loads((self.path / "state.json").read_text())
        except FileNotFoundError:
            return None
        return ClusterState(
            raw["phase"], raw["message"], tuple(ComponentState(**c) for c in raw["components"]), raw["seconds"]
        )

    def write_daemon(self, pid: int) -> None:
        self._write("daemon.json", {"pid": pid, "started": _start_time(pid)})

    def daemon(self) -> int | None:
        """The daemon's pid while it lives; its start time guards against a pid used again, also after a reboot."""
        try:
            raw = json.loads((self.path / "daemon.json").read_text())
        except FileNotFoundError:
            return None
        return raw["pid"] if _start_time(raw["pid"]) == raw["started"] else None

    def _write(self, file: str, content: dict[str, object]) -> None:
        partial = self.path / f".{file}"
        partial.write_text(json.dumps(content))
        partial.rename(self.path / file)


def _start_time(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else f"{boot}/{fields[19]}"
