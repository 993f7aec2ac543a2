"""A pool of local volumes: one that its claim has left is emptied and offered again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cluster.kubectl import Kubectl
from cluster.manifests import Manifest, volume

POOL = 16
COLUMNS = "custom-columns=NAME:.metadata.name,PHASE:.status.phase"


def offer(folder: Path) -> list[Manifest]:
    return [volume(path.name, path) for path in (_empty(folder / f"volume-{index:02}") for index in range(POOL))]


def recycle(kubectl: Kubectl, folder: Path) -> None:
    """Runs as long as the cluster does, woken by the API server's watch."""
    argv = [str(kubectl.program), f"--kubeconfig={kubectl.kubeconfig}", "get", "persistentvolumes", "--watch"]
    with subprocess.Popen([*argv, "--no-headers", f"--output={COLUMNS}"], stdout=subprocess.PIPE, text=True) as watch:
        for line in watch.stdout or []:
            name, phase = line.split()
            if phase == "Released":
                kubectl.run("delete", "persistentvolume", name)
                kubectl.apply(volume(name, _empty(folder / name)))


def _empty(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
