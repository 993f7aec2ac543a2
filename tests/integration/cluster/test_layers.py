"""Layers read from buildah's storage are, byte for byte, the archives that their digests are of."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.layers import CHUNK_BYTES, open_layer

IMAGE = "localhost/layers:1"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("buildah") is None, reason="building an image needs root and buildah"
)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Path]:
    """With an image of two layers."""

    def buildah(*arguments: str) -> str:
        flags = [f"--root={tmp_path / 'storage'}", f"--runroot={tmp_path / 'run'}", "--storage-driver=overlay"]
        return subprocess.run(["buildah", *flags, *arguments], capture_output=True, text=True, check=True).stdout

    below, above = tmp_path / "below", tmp_path / "above"
    fill(below)
    (above / "opt").mkdir(parents=True)
    (above / "opt" / "code.py").write_text("print(1)")
    (tmp_path / "Containerfile").write_text("FROM scratch\nCOPY below /\nCOPY above /\n")
    buildah("build", "--layers", "--isolation=chroot", f"--tag={IMAGE}", str(tmp_path))
    (tmp_path / "manifest.json").write_text(buildah("inspect", "--type=image", "--format={{.Manifest}}", IMAGE))
    yield tmp_path / "storage"
    subprocess.run(["umount", tmp_path / "storage" / "overlay"], capture_output=True, check=False)


def fill(folder: Path) -> None:
    """Everything that is more than a name and some bytes."""
    (folder / "usr" / "lib").mkdir(parents=True)
    (folder / "usr" / "lib" / "large").write_bytes(os.urandom(2 * CHUNK_BYTES + 17))
    (folder / "usr" / "lib" / "empty").touch()
    (folder / "usr" / "lib" / "twin").hardlink_to(folder / "usr" / "lib" / "large")
    (folder / "lib").symlink_to("usr/lib")
    (folder / ("x" * 200)).write_text("a long name")
    (folder / os.fsdecode(b"latin-\xe9")).write_text("a name that is not UTF-8")


def test_layers_have_their_digests_and_sizes(storage: Path, tmp_path: Path) -> None:
    layers = json.loads((tmp_path / "manifest.json").read_text())["layers"]
    read = [open_layer(storage, layer["digest"]).read() for layer in layers]
    assert [(f"sha256:{hashlib.sha256(blob).hexdigest()}", len(blob)) for blob in read] == [
        (layer["digest"], layer["size"]) for layer in layers
    ]
    assert len(layers) == 2


def test_unknown_layer_is_named(storage: Path) -> None:
    with pytest.raises(ClusterError, match="has no layer sha256:0; remove the folder"):
        open_layer(storage, "sha256:0")
