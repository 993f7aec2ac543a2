"""What Argo CD shows of a run, an Environment and an InferenceTest."""

from typing import Any

import pytest

from rig.argocd import health


def a_run(phase: str, *, generation: int = 3, observed: int = 3, **conditions: str) -> dict[str, Any]:
    return {
        "metadata": {"generation": generation},
        "status": {
            "phase": phase,
            "observedGeneration": observed,
            "message": "One sentence.",
            "conditions": [{"type": kind, "status": truth} for kind, truth in conditions.items()],
        },
    }


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (a_run("Pending", Ready="False"), "Progressing"),
        (a_run("Starting", Ready="False", Reconciling="True"), "Progressing"),
        (a_run("Running", Ready="True"), "Healthy"),
        (a_run("Running", Ready="False", Reconciling="True"), "Progressing"),
        (a_run("Running", Ready="False", Stalled="True"), "Degraded"),
        (a_run("Stopping", Ready="False"), "Progressing"),
        (a_run("Stopped"), "Suspended"),
        (a_run("Suspended"), "Suspended"),
        (a_run("Completed", Ready="True", Succeeded="True"), "Healthy"),
        (a_run("Failed", Ready="False", Stalled="True"), "Degraded"),
        (a_run("Pending", Accepted="False", Ready="False"), "Degraded"),
        (a_run("Completed", observed=2, Ready="True"), "Progressing"),
        ({"metadata": {"generation": 1}}, "Progressing"),
        ({"metadata": {"generation": 1}, "status": {"observedGeneration": -1}}, "Progressing"),
    ],
)
def test_health_of_a_run_follows_phase_and_conditions(run: dict[str, Any], expected: str) -> None:
    assert health(run)[0] == expected


def test_the_message_is_the_runs_own() -> None:
    assert health(a_run("Running", Ready="True"))[1] == "One sentence."


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (a_run("Pending", Ready="False", Reconciling="True"), "Progressing"),
        (a_run("Completed", Ready="True", Succeeded="True"), "Healthy"),
        (a_run("Failed", Ready="False", Stalled="True"), "Degraded"),
        (a_run("Completed", observed=2, Ready="True"), "Progressing"),
        ({"metadata": {"generation": 1}, "status": {"observedGeneration": -1}}, "Progressing"),
        ({"metadata": {"generation": 1}}, "Progressing"),
    ],
)
def test_health_of_the_catalogue(item: dict[str, Any], expected: str) -> None:
    assert health(item, "catalogue-health.lua")[0] == expected
