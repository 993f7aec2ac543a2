"""A person reads progress, reward and components at a glance, in 80 columns."""

from __future__ import annotations

from typing import Any

import pytest

from clotho.cli.terminal import view
from clotho.cli.terminal.fitting import UNLIMITED
from clotho.workspace.progress import rewards_of

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


def test_live_view_shows_phase_progress_reward_and_components() -> None:
    lines = view.live_view(RUN, [0.0, 0.25, 0.5], elapsed=65)
    text = "\n".join(lines)
    assert lines[0] == "letters  Running  1 min 05 s"
    assert "30/60  50%  1 min 15 s left" in text
    assert "reward  0.50  ▁▅█" in text
    assert ["trainer", "Starting", "0/1", "1", "letters-trainer-2"] in [line.split() for line in lines]
    assert max(map(len, lines)) <= 80


def test_evaluations_are_a_table_of_newest_and_highest() -> None:
    each = {"environment": "sums", "figure": "accuracy", "value": 0.5, "step": 30, "best": 0.75, "bestStep": 20}
    lines = view.evaluation_lines({"status": {"evaluations": [each]}})
    assert lines[1].split() == ["sums", "accuracy", "0.5", "30", "0.75", "20"]
    assert view.evaluation_lines(RUN) == []


def test_a_run_without_status_waits_for_the_operator() -> None:
    lines = view.live_view({"metadata": {"name": "new"}}, [], elapsed=0)
    assert lines[:2] == ["new  Pending  0 s", "Waiting for the operator."]


def test_results_show_where_the_weights_are() -> None:
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


def test_results_show_an_export_that_has_no_files_yet() -> None:
    export = {"phase": "Pending", "message": "Waiting for the exporting pod to start."}
    run = RUN | {"status": RUN["status"] | {"phase": "Stopped", "export": export}}
    assert "  export        Pending: Waiting for the exporting pod to start." in view.results_view(run)


def test_without_a_width_nothing_is_cut() -> None:
    message = "Waiting for a node: " + "0/3 nodes are available. " * 9 + "\nThat is all."
    lines = view.live_view(RUN | {"status": RUN["status"] | {"message": message}}, [], 0, UNLIMITED)
    assert lines[1] == " ".join(message.split())


@pytest.mark.parametrize(
    ("phase", "state", "shown"),
    [
        ("Running", "Starting", "Starting"),
        ("Running", "Missing", "Missing"),
        ("Stopping", "Ready", "Ready"),
        ("Completed", "Starting", "Finished"),
        ("Completed", "Succeeded", "Finished"),
        ("Completed", "Missing", "-"),
        ("Completed", "Stopping", "Stopping"),
        ("Stopped", "Ready", "Stopping"),
        ("Stopped", "Stopped", "Stopped"),
        ("Suspended", "Stopped", "Stopped"),
        ("Stopped", "Succeeded", "Finished"),
        ("Failed", "Failed", "Failed"),
        ("Failed", "Waiting", "Stopping"),
        ("Suspended", "Missing", "-"),
    ],
)
def test_components_of_a_run_without_pods_are_not_missing(phase: str, state: str, shown: str) -> None:
    assert view.component_state(phase, state) == shown


def test_components_of_a_completed_run_are_finished_or_absent() -> None:
    parts = {
        "apiServer": {"name": "api-server", "state": "Missing"},
        "trainer": {"name": "trainer", "state": "Starting", "pod": "letters-trainer"},
    }
    rows = [line.split() for line in view.live_view(_ended(components=parts), [], elapsed=0)]
    assert ["api-server", "-", "-", "0"] in rows
    assert ["trainer", "Finished", "-", "0", "letters-trainer"] in rows


@pytest.mark.parametrize(
    ("phase", "checkpoint", "expected"),
    [
        ("Running", {"step": 40}, "30/60  50%  1 min 15 s left"),
        ("Stopped", {"step": 40}, "40/60  66%"),
        ("Stopped", {"step": 20}, "30/60  50%"),
        ("Suspended", None, "30/60  50%"),
    ],
)
def test_progress_of_an_inactive_run_includes_its_checkpoint(phase: str, checkpoint: Any, expected: str) -> None:
    lines = view.live_view(_ended(phase=phase, checkpoint=checkpoint), [], elapsed=0)
    assert lines[3].endswith(f"  {expected}")


def _ended(**status: Any) -> dict[str, Any]:
    return RUN | {"status": RUN["status"] | {"phase": "Completed"} | status}


@pytest.mark.parametrize(
    ("message", "expected"),
    [("", "  TrainerReady=False  Missing"), ("1 of 2.", "  TrainerReady=False  Missing: 1 of 2.")],
)
def test_a_condition_is_shown_with_reason_and_message(message: str, expected: str) -> None:
    condition = {"type": "TrainerReady", "status": "False", "reason": "Missing", "message": message}
    assert view.condition_line(condition) == expected


def test_the_message_of_the_run_is_not_repeated_for_each_condition() -> None:
    conditions = [
        {"type": kind, "status": "True", "reason": "Broken", "message": message}
        for kind, message in (("Finished", "It broke."), ("Accepted", "It is valid."))
    ]
    expected = ["  Finished=True  Broken", "  Accepted=True  Broken: It is valid."]
    assert view.condition_lines(conditions, "It broke.") == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "-"), (-0.00001, "0.0000"), (-0.0, "0.0000"), (-0.0884, "-0.0884")]
)
def test_negative_zero_is_shown_without_a_sign(value: float | None, expected: str) -> None:
    assert view.number(value, 4) == expected


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
def test_sparkline_is_scaled_and_fits_its_width(values: list[float], room: int, expected: str) -> None:
    assert view.sparkline(values, room) == expected


@pytest.mark.parametrize(("fraction", "expected"), [(-1, "░░░░"), (0.5, "██░░"), (2, "████")])
def test_bar_stays_within_its_width(fraction: float, expected: str) -> None:
    assert view.bar(fraction, 4) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(5.9, "5 s"), (125, "2 min 05 s"), (7260, "2 h 01 min")])
def test_duration_has_readable_units(seconds: float, expected: str) -> None:
    assert view.duration(seconds) == expected


def test_watch_view_plots_the_rewards() -> None:
    lines = view.watch_view(RUN, {1: 0.0, 10: 0.5, 20: 1.0}, elapsed=5).lines(80)
    chart = [line for line in lines if "┤" in line]
    assert len(chart) == view.PLOT_HEIGHT
    assert chart[0] == "    1.00 ┤  █"
    assert chart[-1] == "    0.00 ┤▁██"
    assert lines[-1].strip() == "reward, steps 1 to 20"
    assert view.watch_view(RUN, {1: 0.0}, elapsed=5).lines(80) == view.live_view(RUN, [0.0], elapsed=5)


def test_rewards_come_from_history_and_progress() -> None:
    assert rewards_of(RUN) == {1: 0.02, 30: 0.5}
    assert rewards_of({"metadata": {"name": "new"}}) == {}
