"""Curves, samples and evaluations stay small whatever a run does, and a resumed run has each step once."""

import msgspec
import pytest

from clotho_contract import history
from clotho_contract.history import Answer, Evaluation, History, SampleGroup, Series


def curve(first: int, last: int, reward: float = 0.5) -> History:
    points = {step: {"rewardMean": reward, "loss": 0.1} for step in range(first, last + 1)}
    return History(series=history.series_of(points))


def test_a_long_series_is_thinned_and_keeps_its_ends() -> None:
    every_figure = dict.fromkeys(history.FIGURES, -1.234e-05)
    series = history.series_of(dict.fromkeys(range(1, 100_001), every_figure))
    assert (series.steps[0], series.steps[-1]) == (1, 100_000)
    assert len(series.steps) <= history.MOST_POINTS
    assert len(msgspec.json.encode(series)) <= history.MOST_SERIES_BYTES
    assert all(len(values) == len(series.steps) for values in series.figures.values())


def test_figures_are_kept_under_camel_case_names_and_only_as_numbers() -> None:
    found = history.recorded({"reward/mean": 0.123456, "kl": float("nan"), "gpu/memory_peak_bytes": 1.0})
    assert found == {"rewardMean": 0.1235, "kl": None}


def test_a_figure_that_comes_later_is_missing_in_the_steps_before() -> None:
    series = history.series_of({1: {"loss": 1.0}, 2: {"loss": 0.5, "kl": 0.1}})
    assert series == Series(steps=(1, 2), figures={"loss": (1.0, 0.5), "kl": (None, 0.1)})
    assert series.points("kl") == [(2, 0.1)]


@pytest.mark.parametrize(
    ("old", "new", "steps"),
    [
        (curve(1, 5), curve(6, 8), (1, 2, 3, 4, 5, 6, 7, 8)),  # what came after an earlier report
        (curve(1, 9), curve(1, 6), (1, 2, 3, 4, 5, 6)),  # resumed from an earlier checkpoint
        (curve(1, 9), curve(4, 5), (1, 2, 3, 4, 5)),  # the same without the steps of the earlier trainer
        (curve(1, 3), History(), (1, 2, 3)),
        (History(), curve(1, 2), (1, 2)),
    ],
)
def test_a_newer_report_replaces_the_steps_from_its_first_one_on(
    old: History, new: History, steps: tuple[int, ...]
) -> None:
    assert history.merged(old, new).series.steps == steps


def test_samples_of_an_earlier_report_stay_until_there_are_new_ones() -> None:
    group = SampleGroup(step=1, kind="best", answers=(Answer(text="yes"),))
    assert history.merged(History(samples=(group,)), curve(2, 3)).samples == (group,)


def test_long_answers_are_cut_with_a_mark_and_all_of_them_fit() -> None:
    answers = tuple(Answer(text="漢" * 5000, reward=1.0, advantage=0.5) for _ in range(50))
    groups = [SampleGroup(step=step, kind="newest", prompt="p", answers=answers) for step in range(50)]
    kept = history.samples_of(groups)
    assert len(kept) == history.MOST_SAMPLES
    assert len(kept[0].answers) == history.MOST_ANSWERS
    assert kept[0].answers[0].text.endswith("more characters]")
    assert len(msgspec.json.encode(kept)) <= history.MOST_SAMPLE_BYTES


def test_evaluations_are_kept_once_and_the_newest_of_too_many() -> None:
    many = [
        Evaluation(step=n, time=f"2026-01-01T{n // 60:02}:{n % 60:02}:00Z", environment="e", figures={"x": float(n)})
        for n in range(200)
    ]
    kept = history.evaluations_of([*many, *many])
    assert [each.step for each in kept] == list(range(100, 200))


def test_evaluations_with_many_long_names_fit() -> None:
    figures = {f"{n}" + "x" * 500: 1.0 for n in range(500)}
    wild = [Evaluation(step=n, time=f"{n}", environment="e" * 500, figures=figures) for n in range(100)]
    kept = history.evaluations_of(map(history.bounded_evaluation, wild))
    assert len(msgspec.json.encode(kept)) <= history.MOST_EVALUATION_BYTES
    assert 0 < len(kept[-1].figures) <= history.MOST_EVALUATED


def test_what_a_trainer_made_up_is_bounded_when_it_is_read() -> None:
    body = b'{"series": {"steps": [2, 1], "figures": {"loss": [1e300, 0.5], "mine": [1, 2], "kl": [1]}}}'
    assert history.decode(body).series == Series(steps=(2,), figures={"loss": (None,), "kl": (1.0,)})
    with pytest.raises(msgspec.MsgspecError):
        history.decode(b'{"series": {"steps": [-1]}}')
    with pytest.raises(msgspec.MsgspecError):
        history.decode(b'{"series": ' + b"[" * 5000 + b"]" * 5000 + b"}")


def test_the_newest_and_the_highest_value_of_each_figure_are_summed_up() -> None:
    values = [(1, 0.2), (2, 0.9), (3, 0.5)]
    found = history.summaries(
        Evaluation(step=step, time=str(step), environment="sums", figures={"accuracy": value}) for step, value in values
    )
    assert [(each.figure, each.step, each.value, each.best_step, each.best) for each in found] == [
        ("accuracy", 3, 0.5, 2, 0.9)
    ]


def test_only_the_last_figures_of_very_many_are_summed_up() -> None:
    many = [Evaluation(step=1, time=str(n), environment="e", figures={f"f{n:03}": 1.0}) for n in range(100)]
    assert [each.figure for each in history.summaries(many)] == [f"f{n:03}" for n in range(84, 100)]


@pytest.mark.parametrize(("rule", "step"), [("accuracy", 3), ("-accuracy", 1), ("unknown", None)])
def test_the_best_evaluation_is_the_highest_or_the_lowest_and_of_equals_the_newest(rule: str, step: int | None) -> None:
    known = [
        Evaluation(step=n, time=str(n), environment="e", figures={"accuracy": value})
        for n, value in ((1, 0.1), (2, 0.9), (3, 0.9))
    ]
    best = history.best_of(known, rule)
    assert (best.step if best else None) == step
