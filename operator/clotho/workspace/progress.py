"""How far a run is, from its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clotho.api.phases import RESTING_PHASES

Run = Mapping[str, Any]


def progress_of(run: Run) -> Mapping[str, Any]:
    """The checkpoint of a run without pods may be newer than the last progress report; it has no time left."""
    status = run.get("status", {})
    progress: Mapping[str, Any] = status.get("progress") or {}
    if not progress or status.get("phase") not in RESTING_PHASES:
        return progress
    step = max(progress["step"], (status.get("checkpoint") or {}).get("step", 0))
    return {**progress, "step": step, "percent": step * 100 // max(progress["totalSteps"], 1), "etaSeconds": None}


def rewards_of(run: Run) -> dict[int, float]:
    """Mean rewards by step: the samples in status."""
    status = run.get("status", {})
    samples = [*status.get("history", ()), status.get("progress") or {}]
    return {sample["step"]: sample["rewardMean"] for sample in samples if sample.get("rewardMean") is not None}
