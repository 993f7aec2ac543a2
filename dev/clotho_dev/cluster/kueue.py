"""Kueue for tests: its CRDs, and its controllers and scheduler as a process beside a control plane.

A Go module of its own: another version of it changes nothing about the cluster's other programs in the cache.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from clotho_dev.cluster import binaries, gobuild
from clotho_dev.cluster.control_plane import LOOPBACK, ControlPlane, answers
from clotho_dev.cluster.locks import only_one
from clotho_dev.cluster.process import Component, Processes
from clotho_dev.ports import free_port

VERSION = "0.18.4"  # as in dev/kueue/go.mod
FRAMEWORK = "TrainingRun.v1alpha1.clotho.dev"
_CRDS = Path("config", "components", "crd", "bases")


@dataclass(frozen=True)
class Kueue:
    program: Path
    crds: Path


def find() -> Kueue:
    """Built once; then it is in the cache, with its CRDs beside it."""
    folder = binaries.cache_folder() / "bin" / f"kueue-v{VERSION}-{binaries.digest(gobuild.KUEUE_MODULE)}"
    found = Kueue(folder / "kueue", folder / "crds")
    if not found.crds.exists():
        with only_one(folder / ".kueue.lock", "building Kueue"):
            gobuild.build({".": ("kueue",)}, folder, VERSION, gobuild.KUEUE_MODULE)
            if not found.crds.exists():
                _copy(gobuild.folder_of("sigs.k8s.io/kueue", gobuild.KUEUE_MODULE) / _CRDS, found.crds)
    return found


def _copy(source: Path, target: Path) -> None:
    """All or nothing; a module's own files are read-only."""
    with tempfile.TemporaryDirectory(prefix=".crds-", dir=target.parent) as scratch:
        copy = Path(scratch) / "crds"
        copy.mkdir()
        for file in source.glob("*.yaml"):
            shutil.copyfile(file, copy / file.name)
        copy.rename(target)


def start(kueue: Kueue, control_plane: ControlPlane, processes: Processes) -> None:
    port = free_port()
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{port}"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["pod"], "externalFrameworks": [FRAMEWORK]},
    }
    file = control_plane.folder / "kueue.yaml"
    file.write_text(yaml.safe_dump(settings))
    argv = [str(kueue.program), f"--kubeconfig={control_plane.kubeconfig}", f"--config={file}"]
    processes.start(Component("kueue", argv, lambda: answers(f"http://{LOOPBACK}:{port}/healthz")))
    processes.wait_ready()
