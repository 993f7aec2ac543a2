"""Rows as a pandas DataFrame where pandas is installed, else as a list of dictionaries."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from clotho.cli.terminal import view
from clotho.workspace.progress import progress_of, rewards_of

Row = dict[str, Any]
Frame = Any  # pandas.DataFrame or list[Row]


def frame(rows: list[Row]) -> Frame:
    return importlib.import_module("pandas").DataFrame(rows) if find_spec("pandas") else rows


def run_row(run: Mapping[str, Any]) -> Row:
    status, progress = run.get("status", {}), progress_of(run)
    return {
        "name": run["metadata"]["name"],
        "phase": status.get("phase", "Pending"),
        "step": progress.get("step", 0),
        "steps": run["spec"]["training"]["steps"],
        "reward": progress.get("rewardMean"),
        "best_reward": max(rewards_of(run).values(), default=None),
        "loss": progress.get("loss"),
        "tokens_per_second": progress.get("tokensPerSecond"),
        "restarts": status.get("restarts", 0),
        "seconds": view.elapsed_seconds(run),
    }


def history_rows(run: Mapping[str, Any]) -> list[Row]:
    """At most ten samples spread over the run, as its status has them, and the newest."""
    status = run.get("status", {})
    newest = [status["progress"]] if status.get("progress") else []
    samples = {each["step"]: each for each in [*status.get("history", ()), *newest]}
    return [
        {"step": step, "reward": each.get("rewardMean"), "loss": each.get("loss")}
        for step, each in sorted(samples.items())
    ]
