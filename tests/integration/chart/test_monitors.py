"""The chart's monitors and alerts against the Prometheus Operator's own CRDs, which come from the Go module proxy."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho_dev.cluster.kubectl import Kubectl

Render = Callable[..., list[dict[str, Any]]]
MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
PLURALS = ("servicemonitors", "podmonitors", "prometheusrules")
KINDS = ("PodMonitor", "PrometheusRule", "ServiceMonitor")


@pytest.fixture(scope="module")
def crds(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    go = shutil.which("go")
    if go is None:
        pytest.skip("without Go the Prometheus Operator's CRDs cannot be fetched")
    folder = tmp_path_factory.mktemp("elsewhere")  # outside the repository's own Go module
    done = subprocess.run(
        [go, "mod", "download", "-json", MODULE], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"the Prometheus Operator's CRDs cannot be fetched: {done.stdout}{done.stderr}")
    source = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
    files = [f"--filename={source}/monitoring.coreos.com_{plural}.yaml" for plural in PLURALS]
    kubectl.run("apply", "--server-side", *files)
    kubectl.run("wait", "--for=condition=Established", *(f"crd/{plural}.monitoring.coreos.com" for plural in PLURALS))
    yield
    kubectl.run("delete", *files)


def check(kubectl: Kubectl, objects: list[dict[str, Any]]) -> None:
    arguments = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-")
    kubectl.run(*arguments, stdin=yaml.safe_dump_all(objects))


def test_monitors_and_alerts_match_the_prometheus_operator_crds(
    crds: None, kubectl: Kubectl, namespace: str, render: Render
) -> None:
    values = [f"monitoring.{part}.enabled=true" for part in ("serviceMonitor", "podMonitor", "alerts")]
    found = [item for item in render(*values, namespace=namespace) if item["kind"] in KINDS]
    assert sorted(item["kind"] for item in found) == list(KINDS)
    check(kubectl, found)
    found[0]["spec"]["endpionts"] = []
    with pytest.raises(Exception, match="endpionts"):
        check(kubectl, found)
