"""What `make atropos-loop` reports, and when it fails."""

import pytest

from atropos.loop import GROUPS, STEPS, Result, has_unexplained, report

RUNS = Result("taxi.py", GROUPS, STEPS)
NEEDS_HUB = Result("gsm8k.py", problem="ConnectionError: Couldn't reach 'gsm8k' on the Hub (OfflineModeIsEnabled)")
BROKEN = Result("cube.py", GROUPS, problem="422 masks[0]: longer than tokens[0]")


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (RUNS, "runs"),
        (NEEDS_HUB, "needs a hub"),
        (BROKEN, "unexplained"),
        (Result("two_groups.py", GROUPS, STEPS - 1), "unexplained"),
        (Result("no_tokens.py", GROUPS - 1, STEPS), "unexplained"),
    ],
)
def test_file_runs_only_when_all_groups_are_written_and_all_steps_trained(result: Result, outcome: str) -> None:
    assert result.outcome == outcome


def test_failures_are_ours_unless_a_cause_outside_is_known() -> None:
    assert not has_unexplained([RUNS, NEEDS_HUB])
    assert has_unexplained([RUNS, BROKEN])


def test_report_has_a_line_for_each_file_and_quotes_unexplained_problems() -> None:
    text = report([RUNS, NEEDS_HUB, BROKEN])
    assert [line.split()[:3] for line in text.splitlines()[1:4]] == [
        ["taxi.py", str(GROUPS), str(STEPS)],
        ["gsm8k.py", "0", "0"],
        ["cube.py", str(GROUPS), "0"],
    ]
    assert BROKEN.problem in text
    assert NEEDS_HUB.problem not in text
    assert text.endswith("1 of 3 run unchanged")
