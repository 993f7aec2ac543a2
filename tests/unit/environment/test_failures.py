"""Failing environment code is retried with growing pauses, up to a limit."""

import pytest

from clotho_environment.rollouts.failures import next_setback, summarize


@pytest.mark.parametrize(
    ("consecutive", "pause", "is_final"),
    [(1, 0.1, False), (2, 0.2, False), (4, 0.8, False), (9, 10.0, False), (31, 10.0, False), (32, 10.0, True)],
)
def test_pause_grows_with_consecutive_failures_up_to_the_limit(consecutive, pause, is_final):
    setback = next_setback(consecutive, limit=32)
    assert (setback.pause_seconds, setback.is_final) == (pytest.approx(pause), is_final)


def test_a_summary_names_the_place():
    with pytest.raises(KeyError) as caught:
        {}["answer"]
    assert summarize(caught.value).startswith("KeyError: 'answer' (")
    assert "test_failures.py:" in summarize(caught.value)
