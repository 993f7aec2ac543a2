"""Several clusters on one machine: each has an image store of its own, which costs no disk space twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clotho_dev import REPOSITORY
from clotho_dev.cluster import embedded, store
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.locks import exclusive
from clotho_dev.cluster.state import DEFAULT_NAME, Folder, name_for_tests

BLOB = "io.containerd.content.v1.content/blobs/sha256/abc"
LAYER = "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/usr/bin/python"
DATABASES = ("io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def filled(name: str, owner: Path = REPOSITORY) -> Path:
    root = Folder(name).containerd_root
    for file in (BLOB, LAYER, *DATABASES):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(f"{file} of {name}")
    (root / store.OWNER).write_text(str(owner))
    return root


def test_demo_and_tests_of_every_clone_have_clusters_of_their_own(tmp_path: Path) -> None:
    names = [DEFAULT_NAME, name_for_tests(tmp_path / "one"), name_for_tests(tmp_path / "two")]
    folders = [Folder(name) for name in names]
    assert len({folder.path for folder in folders}) == 3
    assert len({folder.containerd_root for folder in folders}) == 3
    assert name_for_tests(tmp_path / "one") == name_for_tests(tmp_path / "." / "one"), (
        "the same clone, the same cluster"
    )


def test_new_store_shares_content_and_layers_and_copies_databases() -> None:
    demo = filled(DEFAULT_NAME)
    store.prepare(Folder("tests-1"))
    tests = Folder("tests-1").containerd_root
    for file in (BLOB, LAYER):
        assert (tests / file).samefile(demo / file)
    for file in DATABASES:
        assert (tests / file).read_text() == (demo / file).read_text()
        assert not (tests / file).samefile(demo / file)


def test_existing_store_is_left_as_it_is() -> None:
    filled(DEFAULT_NAME)
    tests = filled("tests-1")
    store.prepare(Folder("tests-1"))
    assert (tests / BLOB).read_text() == f"{BLOB} of tests-1"


def test_interrupted_copy_is_not_taken_for_a_store() -> None:
    filled(DEFAULT_NAME)
    target = Folder("tests-1").containerd_root
    (target.with_name(f".{target.name}.partial") / "io.containerd.metadata.v1.bolt").mkdir(parents=True)
    store.prepare(Folder("tests-1"))
    assert (target / BLOB).exists()
    assert sorted(path.name for path in target.parent.iterdir()) == [DEFAULT_NAME, "tests-1"]


def test_store_and_state_of_a_deleted_clone_are_removed_once_its_cluster_is_down(tmp_path: Path) -> None:
    (tmp_path / "deleted" / ".mypy_cache").mkdir(parents=True)
    gone, running = filled("tests-gone", tmp_path / "deleted"), filled("tests-running", tmp_path / "deleted")
    unfinished = filled(f".tests-gone{store.PARTIAL}", tmp_path / "deleted")
    Folder("tests-gone").volumes.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as daemon:
        folder = Folder("tests-running")
        folder.path.mkdir(parents=True)
        folder.write_daemon(daemon.pid)
        store.prepare(Folder("tests-1"))
        embedded.remove_abandoned()
        daemon.kill()
    assert not gone.exists()
    assert not unfinished.exists()
    assert not Folder("tests-gone").path.exists()
    assert running.exists()
    assert (Folder("tests-1").containerd_root / BLOB).exists(), "our own"


def test_second_session_of_one_clone_is_refused_with_a_sentence(tmp_path: Path) -> None:
    holder = f"""
from pathlib import Path
from clotho_dev.cluster.locks import exclusive
with exclusive(Path({str(tmp_path / "lock")!r}), ""):
    print("held", flush=True)
    input()
"""
    command = [sys.executable, "-c", holder]
    environment = {"PYTHONPATH": str(REPOSITORY / "dev")}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ClusterError, match="another session"), exclusive(tmp_path / "lock", "another session"):
            pass
        other.kill()
    with exclusive(tmp_path / "lock", "a dead holder's lock is released"):
        pass
