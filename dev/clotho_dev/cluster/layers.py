"""Layers of buildah's storage as containerd's snapshots, without copies: the files are hard links.

Neither of the two changes a file in place, and both keep a layer as overlayfs has it, deleted files included.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from clotho_dev.cluster.console import Step
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.node import ctr
from clotho_dev.cluster.oci import digest_of
from clotho_dev.cluster.state import Folder

GC_ROOT = "containerd.io/gc.root"  # ctr labels what it makes with it


def link_layers(folder: Folder, storage: Path, digests: Sequence[str], progress: Step) -> list[str]:
    """Gives containerd the layers of an image that it lacks, lowest first; the names of the snapshots of all of them.

    The new ones stay until they are released, whether or not an image needs them.
    """
    snapshots = chain(digests)
    known = {line.split()[0] for line in ctr(folder, "snapshots", "list").splitlines()[1:]}
    for number, (digest, name) in enumerate(zip(digests, snapshots, strict=True)):
        if name not in known:
            progress.update(f"layer {number + 1} of {len(digests)}")
            _link(folder, _files(storage, digest), name, snapshots[number - 1] if number else None)
    return snapshots


def release(folder: Folder, snapshots: Sequence[str]) -> None:
    """From now on they are kept for the images that need them only."""
    for name in snapshots:
        ctr(folder, "snapshots", "label", name, f"{GC_ROOT}=")


def chain(digests: Sequence[str]) -> list[str]:
    """A snapshot is named by its own layer and all below it (OCI's ChainID)."""
    names = list(digests[:1])
    for digest in digests[1:]:
        names.append(digest_of(f"{names[-1]} {digest}".encode()))
    return names


def _link(folder: Folder, files: Path, name: str, parent: str | None) -> None:
    key = f"linked-{uuid.uuid4()}"
    answer = ctr(folder, "snapshots", "prepare", "--mounts", key, *([parent] if parent else []))
    argv = ["cp", "--archive", "--link", f"{files}/.", f"{_place(json.loads(answer)[0])}/"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        ctr(folder, "snapshots", "remove", key)
        raise ClusterError(f"could not link the layer {files}: {done.stderr.strip().splitlines()[0]}")
    ctr(folder, "snapshots", "commit", name, key)


def _place(mount: dict[str, object]) -> str:
    """Where the files of a new snapshot go. The lowest one is a folder, the others lie over their parents."""
    options = mount["Options"]
    assert isinstance(options, list)  # noqa: S101 - of strings, as containerd defines a mount
    upper = [option.removeprefix("upperdir=") for option in options if option.startswith("upperdir=")]
    return upper[0] if upper else str(mount["Source"])


def _files(storage: Path, digest: str) -> Path:
    for layer in json.loads((storage / "overlay-layers" / "layers.json").read_text()):
        if layer.get("diff-digest") == digest:
            return storage / "overlay" / str(layer["id"]) / "diff"
    raise ClusterError(f"{storage} has no layer {digest}; remove the folder, and the images are built again")
