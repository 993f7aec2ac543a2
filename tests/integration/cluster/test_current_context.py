"""`CLUSTER=current`: the cluster of kubectl's current context, on a real API server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clotho_dev.cluster import binaries, chart, target
from clotho_dev.cluster.control_plane import ControlPlane
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.ports import free_port

HERE, ELSEWHERE = "here", "elsewhere"


@pytest.fixture
def contexts(control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the current context; $KUBECONFIG has a second one, of a cluster that does not answer."""
    here = yaml.safe_load(control_plane.kubeconfig.read_text())
    here["contexts"][0]["name"] = here["current-context"] = HERE
    unreachable = {"server": f"https://127.0.0.1:{free_port()}"}
    other = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": ELSEWHERE, "cluster": unreachable}],
        "contexts": [{"name": ELSEWHERE, "context": {"cluster": ELSEWHERE, "user": ELSEWHERE}}],
        "users": [{"name": ELSEWHERE, "user": {"token": "unused"}}],
    }
    files = [tmp_path / "here", tmp_path / "elsewhere"]
    for file, content in zip(files, (here, other), strict=True):
        file.write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return files[0]


def test_work_stays_in_the_context_of_the_start(contexts: Path, control_plane: ControlPlane) -> None:
    kubeconfig = target.Current().up()
    assert [each["name"] for each in yaml.safe_load(kubeconfig.read_text())["contexts"]] == [HERE]
    assert kubeconfig.stat().st_mode & 0o077 == 0
    contexts.write_text(contexts.read_text().replace(f"current-context: {HERE}", f"current-context: {ELSEWHERE}"))
    assert Kubectl(control_plane.programs["kubectl"], kubeconfig).get("namespaces")["items"]
    with pytest.raises(ClusterError, match="refused"):
        target.Current().up()


@pytest.fixture
def release(kubectl: Kubectl) -> Iterator[str]:
    """Clotho as somebody has installed it before."""
    helm = binaries.find(["helm"])["helm"]
    common = [f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={chart.NAMESPACE}"]
    source = str(target.REPOSITORY / "charts" / "clotho")
    values = ["--set=replicas=0", "--set=runs.namespaces={default}", "--take-ownership", "--create-namespace"]
    subprocess.run([helm, "install", chart.RELEASE, source, *values, *common], check=True, capture_output=True)
    yield chart.RELEASE
    subprocess.run([helm, "uninstall", chart.RELEASE, *common], check=True, capture_output=True)


def test_release_of_somebody_else_is_never_replaced(kubectl: Kubectl, release: str) -> None:
    chart.require_own(kubectl.kubeconfig, ["default"])
    with pytest.raises(ClusterError, match=f"installed in this cluster already, as release {release}"):
        chart.require_own(kubectl.kubeconfig, ["clotho-demo"])


def test_cluster_without_a_release_is_free(kubectl: Kubectl) -> None:
    chart.require_own(kubectl.kubeconfig, ["clotho-demo"])
