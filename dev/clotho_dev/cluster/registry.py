"""A real image registry for tests: the CNCF's distribution, on loopback, with a folder as its storage.

A Go module of its own, as Kueue's: another version of it changes no other program in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from clotho_dev.cluster import binaries, gobuild
from clotho_dev.cluster.control_plane import LOOPBACK
from clotho_dev.cluster.process import Component, Processes, in_network_of
from clotho_dev.ports import free_port

VERSION = "3.1.2"  # as in dev/registry/go.mod


def find() -> Path:
    """Built once; then it is in the cache."""
    folder = binaries.cache_folder() / "bin" / f"registry-v{VERSION}-{binaries.digest(gobuild.REGISTRY_MODULE)}"
    program = folder / "registry"
    if not program.exists():
        gobuild.build({".": ("registry",)}, folder, VERSION, gobuild.REGISTRY_MODULE)
    return program


@dataclass(frozen=True)
class Registry:
    """One storage folder and one port; several processes may serve it, in different network namespaces."""

    program: Path
    folder: Path
    port: int
    read_only: bool = False
    password_file: Path | None = None

    @classmethod
    def at_free_port(cls, folder: Path) -> Registry:
        return cls(find(), folder, free_port())

    @property
    def host(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self, processes: Processes, *, inside: int | None = None) -> None:
        """`inside`: a process whose network namespace it serves, instead of this one's."""
        name = "registry" if inside is None else "registry-inside"
        log = processes.logs / f"{name}.log"
        argv = [*in_network_of(inside), str(self.program), "serve", str(self._write_config())]
        processes.start(Component(name, argv, lambda: f"listening on {self.host}" in log.read_text()))
        processes.wait_ready()

    def _write_config(self) -> Path:
        storage = {"filesystem": {"rootdirectory": str(self.folder / "storage")}, "delete": {"enabled": True}}
        config = {
            "version": 0.1,
            "log": {"level": "info"},
            "storage": {**storage, "maintenance": {"readonly": {"enabled": self.read_only}}},
            "http": {"addr": self.host, "secret": "clotho"},
        }
        if self.password_file is not None:
            config["auth"] = {"htpasswd": {"realm": "clotho", "path": str(self.password_file)}}
        file = self.folder / f"registry-{self.port}.yaml"
        file.write_text(yaml.safe_dump(config))
        return file
