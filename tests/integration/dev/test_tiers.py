"""`make test`: a tier that runs beside the next one is counted and shown like the others."""

import sys

import pytest

from clotho_dev.tiers import Tier, run_in_order


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_tier_beside_the_next_one_is_shown_after_it_and_its_failure_counts(capfd: pytest.CaptureFixture[str]) -> None:
    beside = Tier(
        "beside", "in the background", (python("print('quiet'); exit(3)"), python("")), starts_with_the_next=True
    )
    results = run_in_order([beside, Tier("next", "in the foreground", (python("print('loud')"),))])
    outcomes = {result.tier.name: result.outcome for result in results}
    assert outcomes.pop("beside").endswith("exited with 3")
    assert outcomes == {"next": "passed"}
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    assert lines == ["=== next: in the foreground ===", "loud", "=== beside: in the background ===", "quiet"]


def test_tier_without_a_next_one_runs_all_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    (result,) = run_in_order([Tier("alone", "title", (python("print('seen')"),), starts_with_the_next=True)])
    assert result.outcome == "passed"
    assert capfd.readouterr().out.splitlines()[-1] == "seen"
