"""Grafana dashboards as code: a panel is a title, a unit and its queries; where it stands follows from the order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24
RUN: Final = '{namespace="$namespace",run="$run"}'


@dataclass(frozen=True)
class Panel:
    """`queries` maps the legend to the expression; `kind` is one of Grafana's panel types."""

    title: str
    about: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    maximum: float | None = None


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    about: str
    rows: tuple[Row, ...]
    variables: tuple[tuple[str, str], ...] = ()  # name and the query of its values


def render(dashboard: Dashboard) -> str:
    variables = [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]
    variables += [_variable(name, query) for name, query in dashboard.variables]
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["clotho"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": list(_panels(dashboard.rows)),
    }
    return json.dumps(document, indent=1) + "\n"


def _variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }


def _panels(rows: tuple[Row, ...]) -> Iterator[Json]:
    number, top = 0, 0
    for row in rows:
        number += 1
        yield {"id": number, "type": "row", "title": row.title, "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}}
        top, left = top + 1, 0
        height = 0
        for panel in row.panels:
            number += 1
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            yield _panel(panel, number, left, top)
            left, height = left + panel.width, max(height, panel.height)
        top += height


def _panel(panel: Panel, number: int, left: int, top: int) -> Json:
    targets: list[Json] = [
        {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": DATASOURCE}
        for index, (legend, expression) in enumerate(panel.queries.items())
    ]
    if panel.kind in ("stat", "gauge"):
        targets = [{**target, "instant": True} for target in targets]
    defaults: Json = {"unit": panel.unit, "min": 0 if panel.unit != "short" else None, "max": panel.maximum}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "targets": targets,
        "fieldConfig": {"defaults": {k: v for k, v in defaults.items() if v is not None}, "overrides": []},
        "options": _options(panel.kind),
    }


def _options(kind: str) -> Json:
    if kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name"} if kind == "stat" else {}


def rate(metric: str, selector: str = "") -> str:
    return f"rate({metric}{selector}[$__rate_interval])"


def quantile(share: float, histogram: str, selector: str = "") -> str:
    return f"histogram_quantile({share}, sum by (le) ({rate(f'{histogram}_bucket', selector)}))"


def figure(name: str) -> str:
    return f'clotho_trainer_figure{{namespace="$namespace",run="$run",figure="{name}"}}'
