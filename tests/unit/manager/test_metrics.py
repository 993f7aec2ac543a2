"""Figures of runs appear and vanish with them; the documentation page is complete."""

from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from clotho.manager.metrics import RunCollector
from clotho_contract.progress import Progress
from rig.objects import a_run

NOW = datetime(2026, 11, 15, 13, 0, tzinfo=UTC)
STATUS = {
    "phase": "Running",
    "progress": {"step": 4, "totalSteps": 100, "percent": 4, "rewardMean": 0.5, "lastStepTime": "2026-11-15T12:59:50Z"},
    "components": {"trainer": {"name": "trainer", "state": "Ready", "replicas": 1, "ready": 1}},
}


def exported(status: dict[str, object], answer: Progress | None = None, leads: bool = True) -> list[str]:
    registry = CollectorRegistry()
    registry.register(RunCollector(lambda: [a_run(status=status)], lambda _: answer, lambda: leads, lambda: NOW))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_figures_come_from_status() -> None:
    lines = exported(STATUS)
    assert 'clotho_run_step{namespace="ns",run="r"} 4.0' in lines
    assert 'clotho_run_seconds_since_last_step{namespace="ns",run="r"} 10.0' in lines
    assert 'clotho_run_component_ready{component="trainer",namespace="ns",run="r"} 1.0' in lines
    assert 'clotho_runs{phase="Running"} 1.0' in lines
    assert 'clotho_runs{phase="Failed"} 0.0' in lines


def test_restarts_and_stalls_of_a_run_are_counted() -> None:
    stall = {"cause": "TrainerHung", "since": "2026-11-15T12:00:00Z"}
    lines = exported({"phase": "Starting", "restarts": 2, "stall": stall})
    assert 'clotho_run_restarts{namespace="ns",run="r"} 2.0' in lines
    assert 'clotho_run_stalled{namespace="ns",run="r"} 1.0' in lines
    assert 'clotho_run_stalled{namespace="ns",run="r"} 0.0' in exported(STATUS)


def test_phase_of_a_run_is_a_label_and_queueing_a_figure() -> None:
    lines = exported({"phase": "Pending", "queuedSince": "2026-11-15T12:00:00Z"})
    assert [line for line in lines if line.startswith("clotho_run_phase")] == [
        'clotho_run_phase{namespace="ns",phase="Pending",run="r"} 1.0'
    ]
    assert 'clotho_run_queued{namespace="ns",run="r"} 1.0' in lines
    assert 'clotho_run_queued{namespace="ns",run="r"} 0.0' in exported(STATUS)


def test_the_latest_probe_takes_precedence_over_status() -> None:
    answer = Progress(state="training", step=6, total_steps=100, last_step_time="2026-11-15T12:59:58Z")
    lines = exported(STATUS, answer)
    assert 'clotho_run_step{namespace="ns",run="r"} 6.0' in lines
    assert 'clotho_run_seconds_since_last_step{namespace="ns",run="r"} 2.0' in lines


@pytest.mark.parametrize("reported", ["2026-11-15T12:59:58", "2026-11-15T14:59:58+02:00"])
def test_a_time_without_a_zone_is_utc_and_others_are_converted(reported: str) -> None:
    answer = Progress(state="training", step=6, total_steps=100, last_step_time=reported)
    assert 'clotho_run_seconds_since_last_step{namespace="ns",run="r"} 2.0' in exported(STATUS, answer)


@pytest.mark.parametrize("reported", ["yesterday", "0001-01-01T00:00:00+14:00"])
def test_an_invalid_time_counts_as_not_reported(reported: str) -> None:
    answer = Progress(state="training", step=6, total_steps=100, last_step_time=reported)
    lines = exported({**STATUS, "runningTime": "2026-11-15T12:59:00Z"}, answer)
    assert 'clotho_run_seconds_since_last_step{namespace="ns",run="r"} 60.0' in lines


@pytest.mark.parametrize("phase", ["Completed", "Stopped", "Failed", "Suspended"])
def test_an_inactive_run_exports_no_speed_and_no_step_age(phase: str) -> None:
    answer = Progress(
        state="training",
        step=100,
        total_steps=100,
        tokens_per_second=4310.0,
        last_step_time="2026-11-15T12:59:58Z",
        waiting_share=0.25,
        occupancy=0.5,
    )
    moving = (
        "clotho_run_seconds_since_last_step",
        "clotho_run_tokens_per_second",
        "clotho_run_waiting_share",
        "clotho_run_engine_occupancy",
    )
    assert sum(line.startswith(moving) for line in exported(STATUS, answer)) == 4
    lines = exported({**STATUS, "phase": phase}, answer)
    assert not [line for line in lines if line.startswith(moving)]
    assert 'clotho_run_step{namespace="ns",run="r"} 100.0' in lines


def test_readiness_is_the_share_of_ready_replicas() -> None:
    letters = {"name": "letters", "state": "Starting", "replicas": 4, "ready": 3}
    none = {"name": "none", "state": "Ready", "replicas": 0, "ready": 0}
    lines = exported({"phase": "Running", "components": {"environments": [letters, none]}})
    assert 'clotho_run_component_ready{component="letters",namespace="ns",run="r"} 0.75' in lines
    assert 'clotho_run_component_replicas{component="letters",namespace="ns",run="r"} 4.0' in lines
    assert 'clotho_run_component_ready{component="none",namespace="ns",run="r"} 1.0' in lines


@pytest.mark.parametrize("phase", ["Running", "Completed"])
def test_newest_value_of_each_evaluated_figure_is_exported(phase: str) -> None:
    newest, best = {"step": 8, "value": 0.7}, {"bestStep": 4, "best": 0.9}
    figure = {"environment": "letters", "figure": "percent_correct", **newest, **best}
    lines = exported({**STATUS, "phase": phase, "evaluations": [figure]})
    exact = 'clotho_run_evaluation{environment="letters",figure="percent_correct",namespace="ns",run="r"} 0.7'
    assert exact in lines


def test_a_replica_that_does_not_lead_reports_no_runs() -> None:
    assert not [line for line in exported(STATUS, leads=False) if 'run="r"' in line]
