"""Images that buildah made are containerd's at once: their layers become snapshots of linked files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho_dev.cluster import embedded, images
from clotho_dev.cluster.buildah import buildah, storage
from clotho_dev.cluster.console import Step
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.layers import link_layers
from clotho_dev.cluster.node import ctr, remove_images
from clotho_dev.cluster.state import Folder

TAG = "localhost/clotho/linked:1"
ODD_NAME = os.fsdecode(b"latin-\xe9")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("buildah") and shutil.which("containerd")),
    reason="needs root, buildah and containerd",
)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """Of a containerd that runs, beside a storage with an image of three layers, the last of which deletes a file."""
    with tempfile.TemporaryDirectory() as short:  # a socket's path has few characters
        monkeypatch.setenv("XDG_CACHE_HOME", f"{short}/c")
        monkeypatch.setenv("XDG_STATE_HOME", f"{short}/s")
        build(Path(short) / "context")
        folder = Folder("linked")
        with embedded.containerd_alone(folder):
            yield folder
        subprocess.run(["umount", storage() / "overlay"], capture_output=True, check=False)


def build(context: Path) -> None:
    fill(context / "below")
    (context / "above" / "opt").mkdir(parents=True)
    (context / "above" / "opt" / "code.py").write_text("print(1)")
    (context / "Containerfile").write_text("FROM scratch\nCOPY below /\nCOPY above /\n")
    buildah("build", "--layers", "--isolation=chroot", f"--tag={TAG}", str(context))
    container = buildah("from", TAG).strip()
    (Path(buildah("mount", container).strip()) / "usr" / "lib" / "unwanted").unlink()
    buildah("commit", "--quiet", "--disable-compression", "--rm", container, TAG)


def fill(folder: Path) -> None:
    (folder / "usr" / "lib").mkdir(parents=True)
    (folder / "usr" / "lib" / "large").write_bytes(os.urandom(1 << 20))
    (folder / "usr" / "lib" / "unwanted").touch()
    (folder / "usr" / "lib" / "twin").hardlink_to(folder / "usr" / "lib" / "large")
    (folder / "usr" / "lib").chmod(0o750)
    (folder / "lib").symlink_to("usr/lib")
    (folder / ODD_NAME).write_text("a name that is not UTF-8")


def snapshots(folder: Folder) -> int:
    return len(ctr(folder, "snapshots", "list").splitlines()) - 1


def test_image_has_the_files_of_its_layers_and_takes_no_space(folder: Folder, tmp_path: Path) -> None:
    images.import_image(folder, "linked", TAG)
    ctr(folder, "images", "mount", TAG, str(tmp_path))
    try:
        found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
        names = {"usr", "usr/lib", "usr/lib/large", "usr/lib/twin", "lib", "opt", "opt/code.py", ODD_NAME}
        assert found == names, "without the file that was deleted"
        assert (tmp_path / "lib" / "large").read_bytes() == (tmp_path / "lib" / "twin").read_bytes()
        assert (tmp_path / "usr" / "lib").stat().st_mode & 0o777 == 0o750
    finally:
        ctr(folder, "images", "unmount", str(tmp_path))
    stores = (storage() / "overlay", folder.containerd_root)
    theirs, ours = ({path.stat().st_ino for path in store.rglob("large")} for store in stores)
    assert theirs == ours


def test_image_counts_as_complete_and_its_layers_go_with_it(folder: Folder) -> None:
    images.import_image(folder, "linked", TAG)
    images.import_image(folder, "linked", TAG)  # once more changes nothing
    assert snapshots(folder) == 3
    row = ctr(folder, "images", "check").splitlines()[1].split()
    assert (row[0], row[3], row[-1]) == (TAG, "complete", "true"), "or the kubelet would not see it after a restart"
    remove_images(folder, lambda image: image == TAG)
    assert snapshots(folder) == 0


def test_unknown_layer_is_named(folder: Folder) -> None:
    with pytest.raises(ClusterError, match="has no layer sha256:0; remove the folder"):
        link_layers(folder, storage(), ["sha256:0"], Step("linking"))
