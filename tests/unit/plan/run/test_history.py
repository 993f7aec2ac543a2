"""The few samples of a run's history in its status: spread over the run, bounded, with figures for people."""

import itertools

from clotho.plan.run.progress import spread
from clotho_contract.progress import HistorySample
from unit.plan.run.world import running_world


def test_history_is_spread_over_the_run() -> None:
    samples = [HistorySample(step=step) for step in range(1, 1000)]
    chosen = [sample.step for sample in spread(samples)]
    assert len(chosen) == 10
    assert (chosen[0], chosen[-1]) == (1, 999)
    gaps = [later - earlier for earlier, later in itertools.pairwise(chosen)]
    assert max(gaps) - min(gaps) <= 2


def test_earlier_steps_that_a_resumed_trainer_reports_have_four_digits_too() -> None:
    world = running_world()
    earlier = HistorySample(step=4, reward_mean=0.015625, loss=-0.06242779642343521)
    world.advance(31)
    world.make_progress(5, history=(earlier,), loss=-0.0123456)
    world.settle()
    assert [sample.loss for sample in world.now_status.history] == [-0.06243, -0.01235]


def test_history_grown_step_by_step_stays_spread_and_bounded() -> None:
    kept: tuple[HistorySample, ...] = ()
    for step in range(1, 500):
        kept = spread((*kept, HistorySample(step=step)))
        assert len(kept) <= 10
        assert spread(kept) == kept
    gaps = [later.step - earlier.step for earlier, later in itertools.pairwise(kept)]
    assert kept[0].step == 1
    assert max(gaps) < 150
