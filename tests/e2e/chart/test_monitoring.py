"""A real Prometheus scrapes every component with the chart's monitors; no panel stays empty."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from clotho_dev.chart import install
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.ports import free_port
from rig import prometheus
from rig.helm_release import CHART, ExampleRun, Helm
from rig.scraping import Prometheus

pytestmark = pytest.mark.timeout(600)
FILES = CHART / "files"
WITH_A_GPU_ONLY = {"run: GPU memory"}
WITH_REPLICAS_ONLY = {"sampled by replicas"}


@pytest.fixture(scope="module")
def scraped(
    helm: Helm,
    values: tuple[str, ...],
    run: ExampleRun,
    kubectl: Kubectl,
    release_namespace: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """Prometheus is there first, so that it sees the run begin."""
    program = prometheus.require("prometheus")
    on = ("--set=monitoring.serviceMonitor.enabled=true", "--set=monitoring.podMonitor.enabled=true")
    scope = f"--set=runs.namespaces={{{release_namespace}}}"
    rendered = install.template(helm.program, CHART, *on, scope, namespace=release_namespace)
    monitors = [item for item in rendered if item["kind"].endswith("Monitor")]
    folder = tmp_path_factory.mktemp("prometheus")
    with Prometheus(program, folder, free_port(), kubectl.kubeconfig, monitors) as server:
        helm.upgrade(CHART, *values)
        server.discover(kubectl.in_namespace(release_namespace))
        assert server.without_data({"operator": "clotho_leader == 1"}, limit_seconds=60) == []
        run.start(steps=5000)
        run.until("started", lambda body: body.get("status", {}).get("phase") == "Starting")
        server.discover(kubectl.in_namespace(release_namespace))
        run.until_trained(12)
        yield server


def panels(namespace: str) -> dict[str, str]:
    """Every query of every panel, with Grafana's variables filled in."""
    filled = {"$namespace": namespace, "$run": "letters", "$__rate_interval": "20s"}
    found = {}
    for path in sorted((FILES / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"]
                for variable, value in filled.items():
                    expression = expression.replace(variable, value)
                found[f"{path.stem}: {panel['title']} ({target['legendFormat']})"] = expression
    return found


def selectors() -> dict[str, str]:
    """Every series that an alert looks at; the comparisons around them are the business of promtool's tests.

    Without phases: a healthy run is in one of them only.
    """
    groups = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    return {
        f"{rule['alert']}: {selector}": selector
        for group in groups
        for rule in group["rules"]
        for selector in re.findall(r"clotho_\w+(?:\{(?!phase)[^}]*\})?", rule["expr"])
    }


def _needs_more_than_this_run(line: str) -> bool:
    panel, _, legend = line.removesuffix(")").rpartition(" (")
    return panel in WITH_A_GPU_ONLY or legend in WITH_REPLICAS_ONLY


def test_every_panel_has_data(scraped: Prometheus, release_namespace: str, run: ExampleRun) -> None:
    missing = scraped.without_data(panels(release_namespace), limit_seconds=60)
    empty = [line for line in missing if not _needs_more_than_this_run(line)]
    assert empty == [], run.body()["status"]


def test_every_alert_sees_its_series(scraped: Prometheus) -> None:
    assert scraped.without_data(selectors(), limit_seconds=30) == []


def test_no_alert_is_about_to_fire_on_a_healthy_run(scraped: Prometheus) -> None:
    groups = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    at_once = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"] if "for" not in rule}
    assert {name: scraped.query(expression) for name, expression in at_once.items()} == {name: [] for name in at_once}
