"""`clotho sweep`: the runs that it creates, how many at once, and the table of their results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from clotho.cli import arguments
from clotho.cli.commands import sweeps
from clotho.cli.failure import Exit, Failure
from rig.fake_api import FakeApi

RUN = """\
apiVersion: clotho.dev/v1alpha1
kind: TrainingRun
metadata: {name: base, labels: {team: a}}
spec:
  model: {name: m}
  training: {steps: 10, batchSize: 16}
  environments: [{name: echo, config: {group_size: 4}}]
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: words}, data: {a: b}}
"""
SWEEP = """\
name: lr
base: run.yaml
limit: 2
parameters:
  training.learningRate: [1e-5, 3e-5, 1e-4]
"""
NAMES = ["lr-learningrate-1e-4", "lr-learningrate-1e-5", "lr-learningrate-3e-5"]


def options(*words: str) -> argparse.Namespace:
    return arguments.parse("clotho", ["sweep", *words])


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN)
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    return path


def rewrite(file: Path, text: str) -> None:
    file.write_text(text)


async def names(api: FakeApi) -> list[str]:
    return sorted(run["metadata"]["name"] for run in await api.workspace.all("TrainingRun"))


async def test_a_run_is_created_when_another_has_finished(
    api: FakeApi, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    async def finish_one(_: float) -> None:
        runs = await api.workspace.all("TrainingRun")
        seen.append(len(runs))
        api.objects[api.workspace.path("TrainingRun", runs[0]["metadata"]["name"])]["status"] = {"phase": "Failed"}

    monkeypatch.setattr(sweeps.asyncio, "sleep", finish_one)
    assert await sweeps.start(options("-f", str(file), "-n", "lab"), api.workspace) == Exit.OK
    assert seen == [2]
    assert await names(api) == NAMES
    run = await api.workspace.get("TrainingRun", NAMES[0])
    assert run["metadata"]["labels"] == {"team": "a", "clotho.dev/sweep": "lr"}
    assert run["spec"]["training"]["learningRate"] == 1e-4
    printed = capsys.readouterr()
    assert f"run {NAMES[0]} is created; 0 more" in printed.err
    assert "clotho sweep results lr -n lab" in printed.out


async def test_the_same_command_again_creates_only_what_is_missing(api: FakeApi, file: Path) -> None:
    rewrite(file, SWEEP.replace("limit: 2\n", ""))
    await sweeps.start(options("start", "-f", str(file)), api.workspace)
    del api.objects[api.workspace.path("TrainingRun", NAMES[1])]
    await sweeps.start(options("start", "-f", str(file)), api.workspace)
    assert await names(api) == NAMES


async def test_a_dry_run_prints_manifests_and_creates_nothing(
    api: FakeApi, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await sweeps.start(options("-f", str(file), "--dry-run"), api.workspace)
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["kind"] for each in documents] == ["ConfigMap", *["TrainingRun"] * 3]
    assert documents[1]["metadata"]["annotations"] == {"clotho.dev/sweep-values": '{"training.learningRate": 1e-05}'}
    assert api.objects == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SWEEP.replace("learningRate", "lerningRate"), "line 5: parameters.training.lerningRate: a run has no such"),
        (SWEEP.replace("limit: 2", "limit: two"), 'line 3: limit: must be a whole number, not "two"'),
        (SWEEP.replace("[1e-5, ", "[-1, "), "line 4: parameters: run lr-learningrate-m1: spec.training.learningRate"),
        ("[", "is not YAML: line 1"),
    ],
)
async def test_mistakes_in_the_file_are_reported_with_their_line(
    api: FakeApi, file: Path, text: str, message: str
) -> None:
    rewrite(file, text)
    with pytest.raises(Failure) as failure:
        await sweeps.start(options("-f", str(file)), api.workspace)
    assert message in str(failure.value)
    assert failure.value.code is Exit.USAGE
    assert api.objects == {}


async def test_results_are_a_table_with_the_best_run_first(
    api: FakeApi, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(file, SWEEP.replace("limit: 2\n", ""))
    await sweeps.start(options("-f", str(file)), api.workspace)
    for name, reward in zip(NAMES[:2], (0.5, 0.75), strict=True):
        progress = {"step": 10, "totalSteps": 10, "percent": 100, "rewardMean": reward}
        status: dict[str, Any] = {"phase": "Completed", "progress": progress}
        status["history"] = [{"step": 5, "rewardMean": 0.9}]
        api.objects[api.workspace.path("TrainingRun", name)]["status"] = status
    capsys.readouterr()
    assert await sweeps.results(options("results", "lr"), api.workspace) == Exit.OK
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["learningRate", "PHASE", "STEP", "REWARD", "BEST", "RUN"],
        ["1e-05", "Completed", "10/10", "0.75", "0.90", NAMES[1]],
        ["0.0001", "Completed", "10/10", "0.50", "0.90", NAMES[0]],
        ["3e-05", "Pending", "0/10", "-", "-", NAMES[2]],
    ]
    await sweeps.results(options("results", "lr", "-o", "json"), api.workspace)
    assert msgspec.json.decode(capsys.readouterr().out)[0]["values"] == {"training.learningRate": 1e-05}


@pytest.mark.parametrize("depth", [40, 100_000])
@pytest.mark.parametrize("format", ["table", "json"])
async def test_values_that_are_nested_too_deeply_are_one_line_on_standard_error(
    api: FakeApi, file: Path, capsys: pytest.CaptureFixture[str], depth: int, format: str
) -> None:
    rewrite(file, SWEEP.replace("limit: 2\n", ""))
    await sweeps.start(options("-f", str(file)), api.workspace)
    run = api.objects[api.workspace.path("TrainingRun", NAMES[0])]
    run["metadata"]["annotations"]["clotho.dev/sweep-values"] = '{"a":' * depth + "1" + "}" * depth
    capsys.readouterr()
    chosen = options("results", "lr", *(["-o", format] if format == "json" else []))
    assert await sweeps.results(chosen, api.workspace) == Exit.OK
    shown = capsys.readouterr()
    note = f"run {NAMES[0]}: the annotation clotho.dev/sweep-values is nested too deeply and is left out"
    assert shown.err.splitlines() == [note]
    assert NAMES[0] in shown.out


async def test_an_unknown_sweep_is_reported_with_the_known_ones(api: FakeApi, file: Path) -> None:
    rewrite(file, SWEEP.replace("limit: 2\n", ""))
    await sweeps.start(options("-f", str(file)), api.workspace)
    with pytest.raises(Failure) as failure:
        await sweeps.results(options("results", "rl"), api.workspace)
    assert "sweeps here: lr" in str(failure.value)
    assert failure.value.code is Exit.NOT_FOUND
