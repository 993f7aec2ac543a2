"""The folder of one cluster: everything it writes, and its state while it runs."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clotho_dev.cluster.binaries import cache_folder

DEFAULT_NAME = "embedded"  # the cluster of `make cluster` and `make demo`


def stores_folder() -> Path:
    """Of the image stores of all clusters."""
    return cache_folder() / "containerd"


def name_for_tests(clone: Path) -> str:
    """Each clone tests on a cluster of its own, beside that of the demo and those of other clones."""
    return f"tests-{hashlib.sha256(str(clone.resolve()).encode()).hexdigest()[:6]}"


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
    """What `up` was asked for; stored for the daemon and for a later `up`."""

    profile: str
    port: int
    gpus: int = 0
    egress: bool = False
    audit: bool = False


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
        """For processes inside the cluster's network namespace, where the API server has another port."""
        return self.path / "inside.kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        return self.path / "containerd.sock"

    @property
    def volumes(self) -> Path:
        return self.path / "volumes"

    @property
    def containerd_config(self) -> Path:
        return self.path / "containerd.toml"

    @property
    def containerd_root(self) -> Path:
        """In the cache: images stay when the cluster goes, so that the next one need not import them again."""
        return stores_folder() / self.name

    @property
    def lock(self) -> Path:
        """For a process that needs the cluster to itself; beside the folder, which comes and goes."""
        return self.path.with_name(f"{self.name}.lock")

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
