"""How failing environment code is answered: slower and slower, then not at all."""

import pytest

from clotho_environment.retry import backoff, retry_after
from clotho_environment.rollouts.failures import next_setback, summarize


@pytest.mark.parametrize(
    ("consecutive", "pause", "is_final"),
    [(1, 0.1, False), (2, 0.2, False), (4, 0.8, False), (9, 10.0, False), (31, 10.0, False), (32, 10.0, True)],
)
def test_setbacks_grow_and_end(consecutive, pause, is_final):
    setback = next_setback(consecutive, limit=32)
    assert (setback.pause_seconds, setback.is_final) == (pytest.approx(pause), is_final)


def test_a_summary_names_the_place():
    with pytest.raises(KeyError) as caught:
        {}["answer"]
    assert summarize(caught.value).startswith("KeyError: 'answer' (")
    assert "test_failures.py:" in summarize(caught.value)


def test_backoff_grows_up_to_its_cap():
    delays = [delay for delay, _ in zip(backoff(first=1, cap=8), range(6), strict=False)]
    assert all(limit / 2 <= delay <= limit for delay, limit in zip(delays, [1, 2, 4, 8, 8, 8], strict=True))


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), ("0.5", 0.5), (None, None), ("Wed, 21 Oct", None), ("-1", None), ("1e9", None)]
)
def test_retry_after(header, seconds):
    assert retry_after({"Retry-After": header} if header else {}) == seconds
