"""A pool of local volumes: one that its claim has left is emptied and offered again."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from cluster.kubectl import Kubectl, KubectlError
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
                _empty(folder / name)
                forget = '[{"op": "remove", "path": "/spec/claimRef"}]'
                with contextlib.suppress(KubectlError):  # the watch may tell of one release twice
                    kubectl.run("patch", "persistentvolume", name, "--type=json", f"--patch={forget}")


def _empty(path: Path) -> Path:
    """The folder itself stays: a volume that is still being unmounted keeps pointing at it."""
    path.mkdir(parents=True, exist_ok=True)
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return path
