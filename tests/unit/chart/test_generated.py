"""What is generated around the chart is up to date, and dashboards and alerts use existing metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from clotho.manager.metrics import Metrics as OperatorMetrics
from clotho.manager.metrics import RunCollector
from clotho_api_server.state.disk import Disk
from clotho_api_server.state.metrics import Metrics as ApiServerMetrics
from clotho_dev.chart import generate
from clotho_environment.pod.telemetry import Telemetry
from clotho_trainer.reporting.board import Board
from clotho_trainer.reporting.replica import ReplicaMetrics

ROOT = Path(__file__).parents[3]
FILES = ROOT / "charts" / "clotho" / "files"
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
ALERTS = [rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]


def test_crds_and_dashboards_are_up_to_date() -> None:
    assert generate.stale(generate.chart_files()) == [], "run: make chart"


def exported_names() -> set[str]:
    """Every sample name that one of the programs can export."""
    operator = CollectorRegistry()
    OperatorMetrics(operator)
    operator.register(RunCollector(list, lambda _: None, lambda: True))
    registries = [
        operator,
        Telemetry().registry,
        Board(1, 1.0).registry,
        ReplicaMetrics().registry,
        ApiServerMetrics(no_state, 0, Disk(Path())).registry,
    ]
    names: set[str] = set()
    for registry in registries:
        for name in registry._names_to_collectors:
            names |= {name, f"{name}_bucket", f"{name}_sum", f"{name}_count", f"{name}_total"}
    return names


def no_state() -> Any:
    raise AssertionError("values are never read")


def expressions() -> list[tuple[str, str]]:
    panels = [
        (f"{path.stem}: {panel['title']}", target["expr"])
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", [])
    ]
    return panels + [(rule["alert"], rule["expr"]) for rule in ALERTS]


@pytest.mark.parametrize(("where", "expression"), expressions(), ids=[where for where, _ in expressions()])
def test_metrics_exist(where: str, expression: str) -> None:
    named = set(re.findall(r"clotho_[a-z0-9_]+", expression))
    assert named
    assert named <= exported_names()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_neither_overlap_nor_share_ids(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_has_its_page_in_the_runbook(rule: dict[str, Any]) -> None:
    pages = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    assert rule["alert"] in pages
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description"}
