"""README's lines of installation as they stand there, on an API server that has never seen Clotho."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho_dev.cluster import binaries
from clotho_dev.cluster.chart import IMAGE_KEYS
from clotho_dev.cluster.control_plane import PROGRAMS, ControlPlane
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.release import destination, push

ROOT = Path(__file__).parents[3]
REGISTRY = "registry.example/my-team"


def lines_of_installation() -> list[str]:
    section = (ROOT / "README.md").read_text().partition("\n## Install\n")[2].partition("\n## ")[0]
    code = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    return code.replace("\\\n", " ").splitlines()


@pytest.fixture
def empty_cluster(tmp_path: Path) -> Iterator[Kubectl]:
    with ControlPlane(tmp_path / "control-plane", binaries.find(PROGRAMS)) as running:
        yield Kubectl(running.programs["kubectl"], running.kubeconfig)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("charts", "examples"):
        (tmp_path / "clone" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "clone" / name).symlink_to(ROOT / name)
    (tmp_path / "clone" / "dist").mkdir()
    return tmp_path / "clone"


def pretend_push(clone: Path, letter: str) -> None:
    """What `make push` leaves behind; the pushes themselves are tested with a real registry elsewhere."""
    digests = dict.fromkeys(IMAGE_KEYS, f"sha256:{letter * 64}")
    (clone / "dist" / "images.yaml").write_text(push.chart_values(destination.parse(REGISTRY), digests))


def type_in(line: str, clone: Path, cluster: Kubectl) -> None:
    """Without waiting: there is no node on which anything could become ready."""
    programs = {path.parent for path in binaries.find(["helm", "kubectl"]).values()}
    path = ":".join([*map(str, programs), os.environ["PATH"]])
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path}
    words = ["bash", "-c", line.replace(" --wait", "")]
    done = subprocess.run(words, cwd=clone, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_lines_install_start_a_run_and_upgrade(clone: Path, empty_cluster: Kubectl) -> None:
    lines = lines_of_installation()
    assert [line.split()[0] for line in lines if line] == [
        "make",
        "kubectl",
        "helm",
        "kubectl",
        "kubectl",
        "make",
        "helm",
    ]
    pushes = iter("ab")
    images: list[str] = []
    for line in filter(None, lines):
        if line.startswith("make push"):
            assert re.fullmatch(rf"make push REGISTRY={REGISTRY} TAG=\$\(git rev-parse --short HEAD\)", line)
            pretend_push(clone, next(pushes))
        elif not line.startswith("kubectl wait"):
            type_in(line, clone, empty_cluster)
        if line.startswith("helm"):
            operator = empty_cluster.in_namespace("clotho-system").get("deployment/clotho")
            images.append(operator["spec"]["template"]["spec"]["containers"][0]["image"])
    assert images == [f"{REGISTRY}/operator@sha256:{letter * 64}" for letter in "ab"]
    team = empty_cluster.in_namespace("team-a")
    assert team.get("trainingrun/letters")["spec"]["environments"]
    assert team.get("rolebindings")["items"], "the namespaces of runs survive the upgrade"
