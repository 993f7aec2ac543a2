"""The chart's monitors and alerts against the Prometheus Operator's own CRDs, which come from the Go module proxy."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from clotho_dev.cluster import crds as other_crds
from clotho_dev.cluster.kubectl import Kubectl
from rig import go_modules

Render = Callable[..., list[dict[str, Any]]]
MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
PLURALS = ("servicemonitors", "podmonitors", "prometheusrules")
KINDS = ("PodMonitor", "PrometheusRule", "ServiceMonitor")


@pytest.fixture(scope="module")
def crds(kubectl: Kubectl) -> Iterator[None]:
    source = go_modules.fetch(MODULE) / "example" / "prometheus-operator-crd"
    files = [source / f"monitoring.coreos.com_{plural}.yaml" for plural in PLURALS]
    other_crds.install(kubectl, files)
    yield
    other_crds.remove(kubectl, files)


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
