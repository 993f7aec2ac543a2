"""The chart as a package, and as an OCI artefact in a registry."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml

from clotho_dev import REPOSITORY
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.release import destination
from clotho_dev.release.destination import Destination
from clotho_dev.release.prepare import Pushed, values_with

SOURCE = REPOSITORY / "charts" / "clotho"


def pack(helm: Path, dist: Path, pushed: Pushed | None = None) -> Path:
    """`pushed` images become the package's defaults; the chart in the repository stays as it is."""
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="clotho-chart-") as folder:
        copy = Path(folder) / "clotho"
        shutil.copytree(SOURCE, copy)
        if pushed is not None:
            (copy / "values.yaml").write_text(values_with((copy / "values.yaml").read_text(), pushed))
        _helm(helm, "package", str(copy), f"--destination={dist}")
    return package(dist)


def package(dist: Path) -> Path:
    version = yaml.safe_load((SOURCE / "Chart.yaml").read_text())["version"]
    return dist / f"clotho-{version}.tgz"


def push(helm: Path, file: Path, to: Destination) -> str:
    """The reference by digest; Helm appends the chart's name to the path."""
    if not file.exists():
        raise ClusterError(f"{file} does not exist: pack the chart first with `make chart-package`")
    destination.check(to)
    repository = f"{to.address}/charts"
    insecure = ["--plain-http"] if to.plain_http else []
    argv = [str(helm), "push", str(file), f"oci://{repository}", *insecure]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(destination.refusal(f"{repository}/clotho:", "helm registry", done.stderr))
    digest = re.search(r"sha256:[0-9a-f]{64}", done.stdout + done.stderr)
    return f"{repository}/clotho@{digest[0]}" if digest else f"{repository}/clotho"


def _helm(helm: Path, *arguments: str) -> str:
    done = subprocess.run([str(helm), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"helm {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout
