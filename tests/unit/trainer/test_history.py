"""Every step is in metrics.jsonl; what is kept in memory is short, and right after a restart."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from clotho_trainer.reporting.history import Curve, Recorder, Samples, ScoredAnswers


def group(*rewards: float, environment: str = "letters") -> ScoredAnswers:
    return ScoredAnswers([1], [[2, 3]] * len(rewards), rewards, [0.0] * len(rewards), environment, version=4)


def recorder(folder: Path, *steps: int, run: str = "run-1") -> Recorder:
    made = Recorder(folder / "metrics.jsonl", run)
    for step in steps:
        made.record(step, {"loss": step / 10, "gpu/memory_peak_bytes": 5.0})
    return made


def test_a_long_curve_stays_short_and_even() -> None:
    curve = Curve()
    for step in range(1, 20_001):
        curve.add(step, {"loss": 0.1})
    steps = list(curve.points)
    assert len(steps) <= 500
    assert (steps[0], steps[-1]) == (1, 20_000)
    assert {b - a for a, b in pairwise(steps[:-1])} == {64}


def test_every_figure_of_every_step_is_in_the_file(tmp_path: Path) -> None:
    recorder(tmp_path, 1, 2)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines() if line]
    assert [(line["step"], line["loss"], line["gpu/memory_peak_bytes"]) for line in lines] == [(1, 0.1, 5), (2, 0.2, 5)]
    assert {line["run"] for line in lines} == {"run-1"}


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    recorder(tmp_path, 1, 2, 3, 4)
    resumed = recorder(tmp_path)
    resumed.resume(2)
    resumed.record(3, {"loss": 9.0})
    assert resumed.history().series.points("loss") == [(1, 0.1), (2, 0.2), (3, 9.0)]
    once_more = recorder(tmp_path)
    once_more.resume(3)
    assert once_more.history().series.points("loss") == [(1, 0.1), (2, 0.2), (3, 9.0)]


def test_torn_lines_and_other_runs_are_skipped(tmp_path: Path) -> None:
    recorder(tmp_path, 1, 2)
    recorder(tmp_path, 3, run="other")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"run": "run-1", "st')
    recorder(tmp_path, 3)
    resumed = recorder(tmp_path)
    resumed.resume(3)
    assert resumed.history().series.steps == (1, 2, 3)


def test_a_disk_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    made = recorder(tmp_path, 1, 2)
    assert made.history().series.steps == (1, 2)
    assert len([message for message in caplog.messages if "cannot be written" in message]) == 1


def test_newest_best_and_worst_groups_are_kept() -> None:
    samples = Samples(decode=lambda tokens: "-".join(map(str, tokens)))
    for step, rewards in enumerate([(0.0, 0.0), (1.0, 1.0), (0.5, 0.5), (0.2, 0.2), (0.9, 0.9), (0.0, 0.0)], start=1):
        samples.offer(step, [group(*rewards)])
    kept = samples.groups()
    assert {kind: [g.step for g in kept if g.kind == kind] for kind in ("newest", "best", "worst")} == {
        "newest": [6, 5, 4],
        "best": [2, 5, 3],
        "worst": [6, 1, 4],
    }
    assert (kept[0].prompt, kept[0].answers[0].text, kept[0].environment, kept[0].version) == ("1", "2-3", "letters", 4)
