"""Image stores: each node has its own, and hard links let them share disk space.

containerd holds its store alone, so two nodes can never use one. Content and unpacked layers are never changed in
place, though: a new store links to those of the newest other one and copies only the databases.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clotho_dev import REPOSITORY
from clotho_dev.cluster.binaries import cache_folder
from clotho_dev.cluster.console import step
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.locks import only_one
from clotho_dev.cluster.state import Folder, stores_folder

LINKED = ("io.containerd.content.v1.content/blobs", "io.containerd.snapshotter.v1.*/snapshots")
COPIED = ("io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.*/metadata.db")
OWNER = "clone"  # a file with the path of the clone that used the store last
PARTIAL = ".partial"  # suffix of a store that is being made


def images_lock() -> Path:
    """Held while images are built, imported or removed, in whichever store."""
    return cache_folder() / "images.lock"


def prepare(folder: Folder) -> None:
    """Before containerd starts: a new store gets the images of the newest other one."""
    root = folder.containerd_root
    others = _others(root)
    if not root.exists() and others:
        newest = max(others, key=_last_change)
        with only_one(images_lock(), "building or importing images"), step("Sharing the images of another cluster"):
            _clone(newest, root, config=Folder(newest.name).containerd_config)
    root.mkdir(parents=True, exist_ok=True)
    (root / OWNER).write_text(str(REPOSITORY))


def abandoned() -> list[Path]:
    """Stores, also those that were never completed, whose clone was deleted and whose cluster does not run."""
    return [store for store in stores_folder().glob("*") if _is_abandoned(store)]


def _is_abandoned(store: Path) -> bool:
    owner = store / OWNER
    return owner.exists() and not _is_clone(Path(owner.read_text())) and Folder(store.name).daemon() is None


def _is_clone(path: Path) -> bool:
    """More than the caches that may stay in its folder."""
    return (path / "pyproject.toml").exists()


def _others(root: Path) -> list[Path]:
    candidates = [path for path in root.parent.glob("*") if path != root and path.suffix != PARTIAL]
    return [path for path in candidates if _database(path).exists()]


def _last_change(store: Path) -> float:
    return _database(store).stat().st_mtime


def _database(store: Path) -> Path:
    return store / COPIED[0]


def _clone(source: Path, target: Path, config: Path) -> None:
    partial = target.with_name(f".{target.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / OWNER).write_text(str(REPOSITORY))
    for pattern in LINKED:
        for tree in source.glob(pattern):
            _link(tree, partial / tree.relative_to(source))
    with _paused(config):  # what is on disk at one moment is consistent, as after a crash
        for pattern in COPIED:
            for database in source.glob(pattern):
                copy = partial / database.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(database, copy)
    partial.rename(target)


def _link(source: Path, target: Path) -> None:
    """Running containers may remove files of theirs meanwhile; those of images stay, as the images are locked."""
    target.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["cp", "--archive", "--link", str(source), str(target)], capture_output=True, text=True, check=False
    )
    problems = [line for line in done.stderr.splitlines() if not line.endswith("No such file or directory")]
    if problems:
        raise ClusterError(f"could not link {source} to {target}: {problems[0]}")


@contextmanager
def _paused(config: Path) -> Iterator[None]:
    """Stops the containerd with this configuration for a moment, if it runs; its containers keep running."""
    paused = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _is_containerd(path, config)]
    for pid in paused:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in paused:
            os.kill(pid, signal.SIGCONT)


def _is_containerd(cmdline: Path, config: Path) -> bool:
    try:
        arguments = cmdline.read_bytes().split(b"\0")
    except OSError:
        return False
    return arguments[:2] == [b"containerd", f"--config={config}".encode()]
