"""Where the cluster's programs come from: $KUBEBUILDER_ASSETS, PATH, the cache, a download, or a build with Go."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from clotho_dev.cluster import download, gobuild
from clotho_dev.cluster.console import say
from clotho_dev.cluster.failure import ClusterError

KUBERNETES_VERSION = "1.36.3"
ETCD_VERSION = "3.6.8"
HELM_VERSION = "4.3.1"

# Which package of our Go module makes which programs.
PACKAGES = {
    "./cmd/control-plane": ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    "./cmd/node": ("kubelet", "kube-proxy", "network-policy"),
    "./cmd/coredns": ("coredns",),
    "./cmd/pause": ("pause",),
    "sigs.k8s.io/kwok/cmd/kwok": ("kwok",),
    "helm.sh/helm/v4/cmd/helm": ("helm",),
    "./cmd/kstatus": ("kstatus",),
}
KUBERNETES_PROGRAMS = {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"}
OWN_IMAGES = {"coredns", "pause"}  # packed into images from scratch: only our own static builds will do


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clotho"


def find(names: Iterable[str]) -> dict[str, Path]:
    """Paths of the named programs; what is missing is downloaded or built once."""
    wanted = list(names)
    found = {name: path for name in wanted if (path := _present(name))}
    missing = [name for name in wanted if name not in found]
    if missing:
        obtain(missing)
        found |= {name: path for name in missing if (path := _cached(name))}
    return {name: found[name] for name in wanted}


def are_present(names: Iterable[str]) -> bool:
    return all(_present(name) for name in names)


def obtain(names: list[str]) -> None:
    remaining = (
        [name for name in names if not download.fetch(name, _source(name), _bin())] if _can_download(names) else names
    )
    if not remaining:
        return
    packages = {package: made for package, made in PACKAGES.items() if set(made) & set(remaining)}
    unknown = set(remaining) - {name for made in packages.values() for name in made}
    if unknown:
        raise ClusterError(f"there is no source for {', '.join(sorted(unknown))}")
    gobuild.build(packages, _bin(), KUBERNETES_VERSION)


def _can_download(names: list[str]) -> bool:
    return any(_source(name) for name in names) and download.is_reachable()


def _source(name: str) -> download.Source | None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    system = platform.system().lower()
    if name in KUBERNETES_PROGRAMS | {"kubectl"}:
        return download.kubernetes(name, KUBERNETES_VERSION, system, machine)
    return None


def _present(name: str) -> Path | None:
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        candidate = Path(assets) / name
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    on_path = shutil.which(name)
    if on_path and name not in OWN_IMAGES and _fits(name, Path(on_path)):
        return Path(on_path)
    return _cached(name)


def _cached(name: str) -> Path | None:
    path = _bin() / name
    return path if path.exists() else None


def _bin() -> Path:
    """One folder for each version of what it holds, so that an upgrade never meets an old program."""
    return cache_folder() / "bin" / f"v{KUBERNETES_VERSION}-{digest(gobuild.MODULE)}"


def digest(module: Path) -> str:
    """Of a Go module of ours."""
    contents = hashlib.sha256()
    for path in sorted(module.rglob("*")):
        if path.suffix in {".go", ".mod", ".sum"}:
            contents.update(path.read_bytes())
    return contents.hexdigest()[:12]


def _fits(name: str, path: Path) -> bool:
    """A program on PATH serves if its minor version is ours; kubectl and helm work across versions."""
    if name in {"kubectl", "helm"}:
        return True
    flag = "version" if name == "coredns" else "--version"
    answer = subprocess.run([path, flag], capture_output=True, text=True, timeout=20, check=False)
    version = re.search(r"v?(\d+\.\d+)\.\d+", answer.stdout)
    expected = {"etcd": ETCD_VERSION}.get(name, KUBERNETES_VERSION if name in KUBERNETES_PROGRAMS else None)
    if version is None or expected is None:
        return expected is None and answer.returncode == 0
    if version[1] == expected.rpartition(".")[0]:
        return True
    say(f"{path} is version {version[0]}, not {expected}: ignoring it")
    return False
