"""Debian packages that a real node needs: installed when possible, otherwise the error has the exact command."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from clotho_dev.cluster.console import step
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.locks import only_one

LOCK = Path("/run/lock/clotho-packages.lock")  # apt-get does not wait for another one
CNI_FOLDER = Path("/usr/lib/cni")

# program -> the package that has it
NODE = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    str(CNI_FOLDER / "bridge"): "containernetworking-plugins",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "nft": "nftables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
EGRESS = {"slirp4netns": "slirp4netns"}
IMAGES = {"buildah": "buildah"}
DEBIAN_BASE = {"debootstrap": "debootstrap"}


def require_root(purpose: str) -> None:
    if os.geteuid() != 0:
        raise ClusterError(
            f"{purpose} needs root (namespaces, mounts, containers): run it with sudo, as in `sudo make ...`"
        )


def require(*tables: dict[str, str]) -> None:
    """Install what is missing, or fail with the command that does."""
    missing = sorted({package for table in tables for package in _missing(table)})
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(
            f"these packages are missing: {', '.join(missing)}; install them with: sudo {' '.join(command)}"
        )
    with only_one(LOCK, "installing packages"), step(f"Installing {', '.join(missing)}"):
        _apt(["apt-get", "update"])
        _apt(command)


def _missing(table: dict[str, str]) -> Iterable[str]:
    for program, package in table.items():
        if shutil.which(program) is None:
            yield package


def _apt(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise ClusterError(f"`{' '.join(command)}` failed:\n" + "\n".join(f"  {line}" for line in lines))
