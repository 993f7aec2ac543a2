"""Writes docs/metrics.md from the metrics of all components: `python -m clotho_dev.metrics_page`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from clotho.manager.docs import Row, metric_rows, rows_of
from clotho_api_server.state.disk import Disk
from clotho_api_server.state.metrics import Metrics
from clotho_api_server.state.shares import Snapshot
from clotho_dev import REPOSITORY
from clotho_environment.pod.telemetry import Telemetry
from clotho_trainer.reporting.board import Board
from clotho_trainer.reporting.replica import ReplicaMetrics

PAGE: Final = REPOSITORY / "docs" / "metrics.md"
INTRODUCTION: Final = """\
# Metrics

Each component serves its own on `/metrics`. Written by `python -m clotho_dev.metrics_page`; change the code, not this
page.
"""
OPERATOR: Final = """\
On port 8080 of its Service `clotho-metrics`. Figures of runs come from the replica that leads and vanish with it."""
API_SERVER: Final = "On port 8000 of each run's API server."
TRAINER: Final = """\
On port 8002 of each run's trainer. `figure` is a name as in Weights & Biases: `reward/mean`, `loss`, ..."""
INFERENCE: Final = "On port 8002 of each inference replica."
ENVIRONMENT: Final = "On port 8003 of each environment pod."


def page() -> str:
    def unused() -> Snapshot:
        raise NotImplementedError

    api_server = Metrics(unused, 0, Disk(Path()))
    board, telemetry = Board(total_steps=1, stall_seconds=1.0), Telemetry()
    sections = [
        _section("Operator", OPERATOR, metric_rows()),
        _section("API server", API_SERVER, _rows(api_server.registry)),
        _section("Trainer", TRAINER, _rows(board.registry)),
        _section("Inference replicas", INFERENCE, _rows(ReplicaMetrics().registry)),
        _section("Environments", ENVIRONMENT, _rows(telemetry.registry)),
    ]
    return "\n".join([INTRODUCTION, *sections])


def _rows(registry: CollectorRegistry) -> list[Row]:
    return sorted(rows_of(registry._collector_to_names))


def _section(title: str, text: str, rows: Iterable[Row]) -> str:
    table = [f"| `{name}` | {kind} | {labels} | {meaning} |" for name, kind, labels, meaning in rows]
    return "\n".join(
        [f"## {title}", "", text, "", "| metric | type | labels | meaning |", "|---|---|---|---|", *table, ""]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
