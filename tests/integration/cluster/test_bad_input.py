"""What can go wrong before a cluster stands: one clear line each, a failing exit code, nothing left half-made."""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho_dev.cluster import download, packages, target
from clotho_dev.cluster.background import BackgroundBuild
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.state import Folder
from rig.volumes import MIB, small_volume

REPOSITORY = Path(__file__).parents[3]
UNREACHABLE = "http://127.0.0.1:1"
GO_STAND_IN = """#!/bin/sh
case "$1" in
  env) echo go1.26.0;;
  mod) exit 0;;
  build) while [ $# -gt 0 ]; do [ "$1" = -o ] && echo half > "$2/program"; shift; done; echo k8s.io/example; sleep 60;;
esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A machine with nothing: an empty cache, no programs, no network."""
    return {
        "PATH": "/usr/sbin:/sbin",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": str(REPOSITORY / "dev"),
        "CLOTHO_KUBERNETES_RELEASES": UNREACHABLE,
    }


def cluster(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "clotho_dev.cluster", *arguments]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


def assert_one_clear_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("cluster: ")
    for word in words:
        assert word in last
    assert "Traceback" not in done.stderr


def test_missing_go_is_reported_with_instructions(environment: dict[str, str]) -> None:
    done = cluster(environment, "up", "--profile", "control-plane")
    assert_one_clear_line(done, "building them needs Go 1.26", "install Go", "KUBEBUILDER_ASSETS")
    assert not (Path(environment["XDG_STATE_HOME"]) / "clotho").exists()


def test_a_port_in_use_is_reported(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = cluster(environment, "up", "--profile", "control-plane", "--port", str(port))
    assert_one_clear_line(done, f"port {port} on 127.0.0.1 is taken", "--port")


def test_an_unknown_cluster_is_reported(environment: dict[str, str]) -> None:
    done = cluster(environment | {"CLUSTER": "minikube"}, "up")
    assert_one_clear_line(done, "CLUSTER=minikube is unknown", "embedded, kind, current")


def test_running_without_root_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match=r"needs root .* sudo"):
        packages.require_root("the node profile")
    monkeypatch.setattr(packages.shutil, "which", lambda program: None)  # type: ignore[attr-defined]
    with pytest.raises(ClusterError, match=r"sudo apt-get install .*containerd.* runc"):
        packages.require(packages.NODE)
    with pytest.raises(ClusterError, match=r"run as root on Linux .* CLUSTER=current"):
        target.choose(None)


def test_a_full_disk_is_reported(environment: dict[str, str], tmp_path: Path) -> None:
    _write_program(tmp_path / "bin" / "go", GO_STAND_IN)
    with small_volume(Path(environment["XDG_CACHE_HOME"]), MIB):
        done = cluster(environment | {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}, "up", "--profile", "control-plane")
    assert_one_clear_line(done, "GiB free and the build needs 6 GiB", "XDG_CACHE_HOME")


def test_interrupted_build_leaves_nothing_half_made(environment: dict[str, str], tmp_path: Path) -> None:
    _write_program(tmp_path / "bin" / "go", GO_STAND_IN)
    cache = Path(environment["XDG_CACHE_HOME"])
    argv = [sys.executable, "-m", "clotho_dev.cluster", "prepare", "--profile", "control-plane"]
    environment["PATH"] = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    build = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 30
    while not list(cache.rglob("program")):
        assert time.monotonic() < deadline, "the build never began"
        time.sleep(0.05)
    os.killpg(build.pid, signal.SIGINT)
    build.communicate(timeout=30)
    assert build.returncode == 130
    assert [path.name for path in cache.rglob("*") if path.is_file()] == [".lock"]


def _write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for the official releases, on loopback."""
    folder = tmp_path / "mirror"
    (folder / "v1.0.0/bin/linux/amd64").mkdir(parents=True)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("CLOTHO_KUBERNETES_RELEASES", f"http://127.0.0.1:{server.server_port}")
    yield folder / "v1.0.0/bin/linux/amd64"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("honest", [True, False], ids=["checksum fits", "checksum differs"])
def test_download_with_a_wrong_checksum_is_refused(mirror: Path, tmp_path: Path, honest: bool) -> None:
    (mirror / "kubelet").write_bytes(b"program")
    digest = hashlib.sha256(b"program" if honest else b"another").hexdigest()
    (mirror / "kubelet.sha256").write_text(digest)
    source = download.kubernetes("kubelet", "1.0.0", "linux", "amd64")
    assert download.is_reachable()
    assert download.fetch("kubelet", source, tmp_path / "bin") is honest
    assert [path.name for path in (tmp_path / "bin").iterdir()] == (["kubelet"] if honest else [])


def test_missing_download_leaves_nothing_behind(mirror: Path, tmp_path: Path) -> None:
    source = download.kubernetes("kube-scheduler", "1.0.0", "linux", "amd64")
    assert not download.fetch("kube-scheduler", source, tmp_path / "bin")
    assert list((tmp_path / "bin").iterdir()) == []


def test_state_of_a_daemon_from_before_a_reboot_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = Folder("old")
    folder.path.mkdir(parents=True)
    folder.write_daemon(os.getpid())
    assert folder.daemon() == os.getpid()
    record = folder.path / "daemon.json"
    record.write_text(record.read_text().replace('"started": "', '"started": "another-boot-'))
    assert folder.daemon() is None


def test_failed_build_in_the_background_is_reported_with_its_reason(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    building = BackgroundBuild()
    with pytest.raises(ClusterError, match=r"packages are missing: .*buildah.*the whole output is in"):
        building.wait()
