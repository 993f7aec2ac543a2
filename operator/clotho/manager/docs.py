"""Writes the pages that are generated from code: `python -m clotho.manager.docs`."""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from clotho.manager import settings
from clotho.manager.metrics import Metrics, RunCollector

PAGES = Path(__file__).parents[3] / "docs"


def metrics_page() -> str:
    lines = [
        "# Operator metrics",
        "",
        "Served on `/metrics`. Figures of runs come from the replica that leads and vanish with the run. Written by",
        "`python -m clotho.manager.docs`; change `operator/clotho/manager/metrics.py`, not this page.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    rows = sorted([*_own_metrics(), *_run_metrics()])
    return (
        "\n".join([*lines, *(f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in rows)]) + "\n"
    )


Row = tuple[str, str, str, str]


def _run_metrics() -> Iterator[Row]:
    for metric in RunCollector(lambda: (), lambda _: None, lambda: True).describe():
        yield metric.name, metric.type, _listed(getattr(metric, "_labelnames", ())), metric.documentation


def _own_metrics() -> Iterator[Row]:
    for attribute in vars(Metrics(CollectorRegistry())).values():
        if isinstance(attribute, MetricWrapperBase):
            metric = next(iter(attribute.describe()))
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            yield name, metric.type, _listed(attribute._labelnames), metric.documentation


def _listed(labels: tuple[str, ...]) -> str:
    return ", ".join(f"`{label}`" for label in labels) or "-"


def pages() -> dict[Path, str]:
    return {PAGES / "operator-settings.md": settings.to_markdown(), PAGES / "metrics.md": metrics_page()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
