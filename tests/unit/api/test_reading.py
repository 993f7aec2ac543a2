"""A status that another release wrote is read as far as this one knows its values."""

from typing import Any

import pytest

from clotho.api.training_run import TrainingRun, parse

CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Completed",
    "message": "",
    "lastTransitionTime": "2026-11-15T21:41:29Z",
    "observedGeneration": 1,
}
TRAINER = {"name": "trainer", "state": "Ready", "failures": 2}


def read(**status: Any) -> TrainingRun:
    body = {
        "metadata": {"name": "demo", "namespace": "team", "uid": "0123abcd-0000-4000-8000-000000000000"},
        "spec": {
            "model": {"name": "Qwen/Qwen3-8B"},
            "environments": [{"name": "letters", "config": {"group_size": 8}}],
            "training": {"steps": 100},
        },
        "status": {"phase": "Completed", "attempt": 3, **status},
    }
    run = parse(body)
    assert isinstance(run, TrainingRun), run
    return run


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{**CONDITION, "type": "OfTomorrow"}, CONDITION, {**CONDITION, "status": "Perhaps"}]},
        {"conditions": [CONDITION], "components": {"apiServer": {"name": "api-server", "state": "OfTomorrow"}}},
        {"conditions": [CONDITION], "progress": "3 of 4", "startTime": 12},
        {"conditions": [CONDITION], "ofTomorrow": {"some": "field"}},
    ],
)
def test_unknown_values_are_left_out_and_the_run_stays_finished(status: dict[str, Any]) -> None:
    status["components"] = {**status.get("components", {}), "trainer": TRAINER}
    run = read(**status)
    assert (run.status.phase, run.status.attempt) == ("Completed", 3)
    assert [condition.type for condition in run.status.conditions] == ["Ready"]
    assert run.status.components
    assert run.status.components.trainer
    assert run.status.components.trainer.failures == 2


@pytest.mark.parametrize("status", ["nonsense", ["nonsense"], {"phase": "OfTomorrow"}])
def test_status_without_a_readable_part_is_derived_again(status: Any) -> None:
    body = {"metadata": {"name": "demo", "uid": "0"}, "spec": {"model": {"name": "x"}}, "status": status}
    assert parse(body).status.phase == "Pending"
