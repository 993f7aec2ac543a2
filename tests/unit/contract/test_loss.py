"""Which importance ratios a loss leaves as they are; both backends take the range from here."""

import pytest

from clotho_contract.settings import Loss


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Loss(), (0.8, 1.2)),
        (Loss(type="cispo"), (0.0, 5.0)),
        (Loss(type="dapo", epsilon=0.1, epsilon_high=0.3), (0.9, 1.3)),
        (Loss(type="grpo", epsilon=0.25), (0.75, 1.25)),
        (Loss(type="cispo", epsilon=0.1, epsilon_high=3.0), (0.0, 3.0)),
    ],
)
def test_range_of_importance_ratios(loss: Loss, expected: tuple[float, float]) -> None:
    assert loss.ratio_range == pytest.approx(expected)
