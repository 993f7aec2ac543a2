"""A person reads progress, reward and components at a glance, in 80 columns."""

from __future__ import annotations

from typing import Any

import pytest

from clotho.cli import view

RUN: dict[str, Any] = {
    "metadata": {"name": "letters"},
    "status": {
        "phase": "Running",
        "message": "Training: step 30 of 60.",
        "progress": {"step": 30, "totalSteps": 60, "percent": 50, "rewardMean": 0.5, "etaSeconds": 75},
        "history": [{"step": 1, "rewardMean": 0.02, "loss": 0.1}, {"step": 30, "rewardMean": 0.5}],
        "components": {
            "apiServer": {"name": "api-server", "state": "Ready", "ready": 1, "pod": "letters-api-server"},
            "trainer": {"name": "trainer", "state": "Starting", "restarts": 1, "pod": "letters-trainer-2"},
            "environments": [{"name": "letters", "state": "Ready", "replicas": 2, "ready": 2, "pod": "letters-0"}],
        },
    },
}


def test_live_view_tells_the_whole_story() -> None:
    lines = view.live_view(RUN, [0.0, 0.25, 0.5], elapsed=65)
    text = "\n".join(lines)
    assert lines[0] == "letters  Running  1 min 05 s"
    assert "30/60  50%  1 min 15 s left" in text
    assert "reward  0.50  ▁▅█" in text
    assert ["trainer", "Starting", "0/1", "1", "letters-trainer-2"] in [line.split() for line in lines]
    assert max(map(len, lines)) <= 80


def test_a_run_nobody_has_looked_at_yet() -> None:
    lines = view.live_view({"metadata": {"name": "new"}}, [], elapsed=0)
    assert lines[:2] == ["new  Pending  0 s", "Waiting for the operator."]


def test_results_say_where_the_weights_are() -> None:
    run = RUN | {
        "status": RUN["status"]
        | {
            "phase": "Completed",
            "results": {"step": 60, "rewardMean": 0.97, "claim": "letters-trainer", "path": "checkpoints/step-60"},
        }
    }
    text = "\n".join(view.results_view(run))
    assert view.is_finished(run)
    assert "final reward  0.97" in text
    assert "checkpoints/step-60 on claim letters-trainer" in text


@pytest.mark.parametrize(
    ("values", "room", "expected"),
    [
        ([], 5, ""),
        ([1.0], 5, "▁"),
        ([0, 1], 5, "▁█"),
        ([0, 0, 0], 5, "▁▁▁"),
        (list(range(100)), 3, "▁▅█"),
    ],
)
def test_sparkline(values: list[float], room: int, expected: str) -> None:
    assert view.sparkline(values, room) == expected


@pytest.mark.parametrize(("fraction", "expected"), [(-1, "░░░░"), (0.5, "██░░"), (2, "████")])
def test_bar_stays_within_its_width(fraction: float, expected: str) -> None:
    assert view.bar(fraction, 4) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(5.9, "5 s"), (125, "2 min 05 s"), (7260, "2 h 01 min")])
def test_duration(seconds: float, expected: str) -> None:
    assert view.duration(seconds) == expected


def test_watch_view_plots_the_rewards() -> None:
    lines = view.watch_view(RUN, {1: 0.0, 10: 0.5, 20: 1.0}, elapsed=5)
    chart = [line for line in lines if "┤" in line]
    assert len(chart) == view.PLOT_HEIGHT
    assert chart[0] == "    1.00 ┤  █"
    assert chart[-1] == "    0.00 ┤▁██"
    assert lines[-1].strip() == "reward, steps 1 to 20"
    assert view.watch_view(RUN, {1: 0.0}, elapsed=5) == view.live_view(RUN, [0.0], elapsed=5)


def test_rewards_come_from_history_and_progress() -> None:
    assert view.rewards_of(RUN) == {1: 0.02, 30: 0.5}
    assert view.rewards_of({"metadata": {"name": "new"}}) == {}
