"""Images imported before there is a cluster, by a containerd that runs alone for as long as that takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho_dev.cluster import embedded, node, oci
from clotho_dev.cluster.state import Folder

TAG = "localhost/clotho-dev/early:1"
STATE = Path("/run/containerd-state")

needs_containerd = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("containerd") is None, reason="needs root and containerd"
)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    with tempfile.TemporaryDirectory() as short:  # a socket's path has few characters
        monkeypatch.setenv("XDG_CACHE_HOME", f"{short}/c")
        monkeypatch.setenv("XDG_STATE_HOME", f"{short}/s")
        yield Folder("early")


@needs_containerd
def test_images_are_there_when_the_cluster_starts_and_nothing_else_is_left(folder: Folder) -> None:
    before = STATE.exists()
    with embedded.containerd_alone(folder) as is_free:
        assert is_free
        node.import_archive(folder, oci.archive_of_program(Path(shutil.which("true") or ""), TAG))
    assert not folder.path.exists()
    assert STATE.exists() == before
    with embedded.containerd_alone(folder):
        assert TAG in node.ctr(folder, "images", "list", "--quiet").split()


def test_the_store_of_a_running_cluster_is_left_alone(folder: Folder) -> None:
    folder.path.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as daemon:
        folder.write_daemon(daemon.pid)
        with embedded.containerd_alone(folder) as is_free:
            assert not is_free
        daemon.kill()
    assert folder.path.exists()
