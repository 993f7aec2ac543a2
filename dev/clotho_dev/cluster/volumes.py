"""A pool of local volumes: a released one is emptied and becomes available again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.manifests import Manifest, volume

POOL = 16
COLUMNS = "custom-columns=NAME:.metadata.name,PHASE:.status.phase"


def offer(folder: Path) -> list[Manifest]:
    return [volume(path.name, path) for path in (_empty(folder / f"volume-{index:02}") for index in range(POOL))]


def recycle(kubectl: Kubectl, folder: Path) -> None:
    """Runs as long as the cluster; the API server ends its watch now and then."""
    argv = [str(kubectl.program), f"--kubeconfig={kubectl.kubeconfig}", "get", "persistentvolumes", "--watch"]
    while True:
        with subprocess.Popen(
            [*argv, "--no-headers", f"--output={COLUMNS}"], stdout=subprocess.PIPE, text=True
        ) as watch:
            for line in watch.stdout or []:
                name, phase = line.split()
                if phase == "Released" and _is_released(kubectl, name):
                    _offer_again(kubectl, name, folder)


def _offer_again(kubectl: Kubectl, name: str, folder: Path) -> None:
    _empty(folder / name)
    forget = '[{"op": "remove", "path": "/spec/claimRef"}]'
    kubectl.run("patch", "persistentvolume", name, "--type=json", f"--patch={forget}")


def _is_released(kubectl: Kubectl, name: str) -> bool:
    """The watch may report one release twice, and late: by then the volume can hold another claim's data."""
    phase: str = kubectl.get(f"persistentvolume/{name}")["status"]["phase"]
    return phase == "Released"


def _empty(path: Path) -> Path:
    """The folder itself stays: a volume that is still being unmounted keeps pointing at it."""
    path.mkdir(parents=True, exist_ok=True)
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return path
