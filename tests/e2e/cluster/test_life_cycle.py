"""A cluster that has ended leaves nothing behind on the machine, however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho_dev.cluster import binaries, cgroups, embedded
from clotho_dev.cluster.control_plane import PROGRAMS, ControlPlane
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.state import Folder

ROOT = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="a real node needs root on Linux")
REPOSITORY = Path(__file__).parents[3]


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def traces(folder: Folder) -> dict[str, object]:
    """Everything of a cluster that the kernel of this machine could still hold."""
    commands = [path / "cmdline" for path in Path("/proc").iterdir() if path.name.isdigit()]
    return {
        "mounts": sorted(line for line in Path("/proc/mounts").read_text().splitlines() if str(folder.path) in line),
        "links": run("ip", "-brief", "link"),
        "rules": run("nft", "list", "ruleset"),
        "processes": [path for path in commands if str(folder.path).encode() in _read(path)],
        "groups": [str(path) for path in cgroups.MOUNT.glob(f"**/{cgroups.root_of(folder.name).lstrip('/')}")],
        "network plugins": Path("/var/lib/cni").exists(),
    }


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def home() -> Iterator[Path]:
    """Shorter than pytest's own, for the sake of socket paths."""
    with tempfile.TemporaryDirectory(prefix="clotho-") as folder:
        yield Path(folder)


@pytest.fixture
def cluster_command(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cluster beside the one of the session: programs from the same place, but state and images of its own."""
    bin_folder = binaries.find(embedded.node_programs())["kubelet"].parent
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(bin_folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "dev"))
    return [sys.executable, "-m", "clotho_dev.cluster"]


@ROOT
@pytest.mark.parametrize("killed", [False, True], ids=["down", "daemon killed, then down"])
def test_node_leaves_nothing_behind(cluster_command: list[str], killed: bool) -> None:
    folder = Folder("life-cycle")
    before = traces(folder)
    run(*cluster_command, "up", "--name", folder.name, "--gpus", "2")
    kubectl = embedded.kubectl_for(folder)
    assert kubectl.get("nodes")["items"][0]["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert traces(folder) != before
    run(*cluster_command, "up", "--name", folder.name)  # once more changes nothing
    daemon = folder.daemon()
    assert daemon is not None
    if killed:
        os.kill(daemon, signal.SIGKILL)
    run(*cluster_command, "down", "--name", folder.name)
    assert traces(folder) == before
    assert not folder.path.exists()


@ROOT
def test_dead_component_is_named_with_the_end_of_its_log(cluster_command: list[str]) -> None:
    folder = Folder("broken")
    run(*cluster_command, "up", "--name", folder.name, "--profile", "control-plane")
    try:
        victim = run("pgrep", "--full", f"kube-scheduler.*{folder.path}").split()[0]
        os.kill(int(victim), signal.SIGKILL)
        status = [*cluster_command, "status", "--name", folder.name]
        for _ in range(100):
            shown = subprocess.run(status, capture_output=True, text=True, check=False)
            if shown.returncode != 0:
                break
        assert shown.returncode == 1
        assert "kube-scheduler died (killed by SIGKILL); the end of" in shown.stdout
    finally:
        run(*cluster_command, "down", "--name", folder.name)


def test_two_control_planes_run_side_by_side(tmp_path: Path) -> None:
    programs = binaries.find(PROGRAMS)
    with ControlPlane(tmp_path / "one", programs) as one, ControlPlane(tmp_path / "two", programs) as two:
        first, second = (Kubectl(programs["kubectl"], plane.kubeconfig) for plane in (one, two))
        first.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "only-here"}})
        names = {item["metadata"]["name"] for item in second.get("namespaces")["items"]}
        assert "default" in names
        assert "only-here" not in names
