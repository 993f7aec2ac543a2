"""What another release wrote is read as far as this one knows it."""

from typing import Any

import pytest

from clotho.api.training_run import TrainingRun, UnreadableRun, parse

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


UNKNOWN = {"checkpoint": {"everySteps": 5, "ofTomorrow": "Fail"}, "steps": 100, "alsoOfTomorrow": [{"x": 1}]}


def with_unknown_fields(conditions: object, observed_generation: int, **training: Any) -> TrainingRun | UnreadableRun:
    return parse(
        {
            "metadata": {"name": "demo", "uid": "0", "generation": 2},
            "spec": {"model": {"name": "x"}, "environments": [{"name": "a", "b": 1}], "training": UNKNOWN | training},
            "status": {"phase": "Running", "observedGeneration": observed_generation, "conditions": conditions},
        }
    )


def test_accepted_spec_is_read_without_the_fields_of_a_newer_crd() -> None:
    run = with_unknown_fields([CONDITION], observed_generation=2)
    assert isinstance(run, TrainingRun), run
    assert (run.spec.training.steps, run.spec.training.checkpoint.every_steps) == (100, 5)
    assert [each.name for each in run.spec.environments] == ["a"]


@pytest.mark.parametrize(
    ("conditions", "observed_generation"),
    [
        ([CONDITION], 1),
        ([CONDITION | {"type": "Accepted", "status": "False", "reason": "Invalid"}], 2),
        ("nonsense", 2),
        ([], -1),
    ],
)
def test_unknown_fields_of_a_spec_that_was_not_accepted_are_reported(
    conditions: object, observed_generation: int
) -> None:
    run = with_unknown_fields(conditions, observed_generation)
    assert isinstance(run, UnreadableRun)
    assert "unknown field" in run.problem


def test_wrong_values_of_an_accepted_spec_are_reported() -> None:
    run = with_unknown_fields([CONDITION], observed_generation=2, steps="many")
    assert isinstance(run, UnreadableRun)
    assert run.problem == "spec.training.steps: expected `int`, got `str`"
