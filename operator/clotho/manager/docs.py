"""The operator's settings and metrics as text; `python -m clotho.manager.docs` writes docs/operator-settings.md."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from clotho.manager import settings
from clotho.manager.metrics import Metrics, RunCollector

PAGES = Path(__file__).parents[3] / "docs"


Row = tuple[str, str, str, str]  # name, type, labels, meaning


def metric_rows() -> list[Row]:
    return sorted([*_own_metrics(), *_run_metrics()])


def _run_metrics() -> Iterator[Row]:
    for metric in RunCollector(lambda: (), lambda _: None, lambda: True).describe():
        yield metric.name, metric.type, _listed(getattr(metric, "_labelnames", ())), metric.documentation


def _own_metrics() -> Iterator[Row]:
    return rows_of(attribute for attribute in vars(Metrics(CollectorRegistry())).values())


def rows_of(collectors: Iterable[object]) -> Iterator[Row]:
    for each in collectors:
        if isinstance(each, MetricWrapperBase):
            metric = next(iter(each.describe()))
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            yield name, metric.type, _listed(each._labelnames), metric.documentation


def _listed(labels: tuple[str, ...]) -> str:
    return ", ".join(f"`{label}`" for label in labels) or "-"


if __name__ == "__main__":
    (PAGES / "operator-settings.md").write_text(settings.to_markdown())
