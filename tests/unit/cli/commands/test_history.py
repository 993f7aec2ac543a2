"""`run plot`, `run samples` and `run logs` of a run whose pods are gone."""

import argparse
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import msgspec
import pytest

from clotho.api.history import KeptLog, history_data, log_data
from clotho.cli import arguments
from clotho.cli.commands import download, history, logs
from clotho.cli.failure import Exit, Failure
from clotho.cli.terminal.curves import TITLES, curves
from clotho_contract.history import FIGURES, Answer, History, SampleGroup, Series
from rig.fake_api import NAMESPACE, FakeApi

SERIES = Series(steps=(1, 2, 3), figures={"rewardMean": (0.1, 0.5, 0.9), "loss": (1.0, None, 0.5)})
SAMPLES = tuple(
    SampleGroup(step=3, kind=kind, environment="sums", version=2, prompt="2+2?\nAnswer:", answers=(Answer(text=text),))
    for kind, text in (("newest", "4"), ("best", "four \x1b[2J\u202e"))
)


def options(*words: str) -> argparse.Namespace:
    return arguments.parse("clotho", ["run", words[0], "mine", *words[1:]])


@pytest.fixture
def api() -> FakeApi:
    fake = FakeApi()
    fake.add("TrainingRun", "mine", {}, {"attempt": 2, "phase": "Completed"})
    return fake


def keep(api: FakeApi, name: str, data: dict[str, str]) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/mine-uidofmin-{name}"
    api.objects[path] = {"metadata": {"name": "x"}, "data": data}


def test_every_kept_figure_can_be_chosen_and_has_a_title() -> None:
    assert arguments.FIGURES == FIGURES == tuple(TITLES)


async def test_curves_are_drawn_with_their_range(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    keep(api, "history", history_data(History(series=SERIES)))
    assert await history.plot(options("plot"), api.workspace) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "reward, mean (rewardMean): 0.9"
    assert lines[1].split() == ["0.90", "┤", "█"]
    assert lines[7].strip() == "steps 1 to 3"
    assert "loss (loss): 0.5" in lines


def test_only_the_chosen_figures_are_drawn() -> None:
    assert [line for line in curves(SERIES, ["loss"], 80) if "(" in line] == ["loss (loss): 0.5"]


@pytest.mark.parametrize("command", [history.plot, history.samples])
async def test_a_run_without_steps_has_nothing_to_show(api: FakeApi, command: object) -> None:
    word = command.__name__  # type: ignore[attr-defined]
    with pytest.raises(Failure, match="yet; they are kept from the first step on"):
        await command(options(word), api.workspace)  # type: ignore[operator]


async def test_answers_are_shown_without_control_characters(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    keep(api, "history", history_data(History(samples=SAMPLES)))
    await history.samples(options("samples", "--kind", "best"), api.workspace)
    assert capsys.readouterr().out.splitlines() == [
        "step 3: best group of sums, policy of step 2",
        "  prompt",
        "    2+2?",
        "    Answer:",
        "  answer  reward -  advantage -",
        "    four \ufffd[2J\ufffd",
    ]


def kept_logs() -> dict[str, str]:
    titles = ("trainer", "trainer-1", "api-server", "sums-0")
    each = [
        KeptLog(attempt=attempt, restarts=0, title=title, container="main", text=f"{attempt} one\n{attempt} two")
        for attempt, title in product((1, 2), titles)
    ]
    return log_data(tuple(each))


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["-c", "trainer", "--tail", "1"], ["trainer  2 two", "trainer-1  2 two"]),
        (["-c", "environment", "--attempt", "1"], ["sums-0  1 one", "sums-0  1 two"]),
        (["-c", "api-server", "-f"], ["api-server  2 one", "api-server  2 two"]),
    ],
)
async def test_kept_logs_are_printed_when_the_pods_are_gone(
    api: FakeApi, words: list[str], printed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keep(api, "logs", kept_logs())
    assert await logs.logs(options("logs", *words), api.workspace) == Exit.OK
    assert capsys.readouterr().out.splitlines() == printed


async def test_kept_lines_can_be_too_old(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(UTC)
    ages = {"old": 7200, "new": 60}
    lines = [
        msgspec.json.encode({"time": (now - timedelta(seconds=age)).isoformat(), "level": "info", "message": name})
        for name, age in ages.items()
    ]
    text = "\n".join([*(line.decode() for line in lines), "plain", '{"time": "x", "level": "info", "message": "odd"}'])
    keep(api, "logs", log_data((KeptLog(attempt=2, restarts=0, title="trainer", container="main", text=text),)))
    assert await logs.logs(options("logs", "--since", "1h"), api.workspace) == Exit.OK
    printed = capsys.readouterr().out
    assert "old" not in printed
    assert [line.split()[-1] for line in printed.splitlines()] == ["new", "plain", "odd"]


async def test_kept_logs_and_curves_are_downloaded(api: FakeApi, tmp_path: Path) -> None:
    keep(api, "logs", kept_logs())
    keep(api, "history", history_data(History(series=SERIES)))
    for what in ("logs", "metrics"):
        asked = options("download", "--what", what, "--to", str(tmp_path / what))
        assert await download.download(asked, api.workspace) == Exit.OK
    assert (tmp_path / "logs" / "1.0.sums-0.main.log").read_text() == "1 one\n1 two\n"
    assert len(list((tmp_path / "logs").iterdir())) == 8
    metrics = msgspec.json.decode((tmp_path / "metrics" / "metrics.json").read_bytes())
    assert metrics["series"]["figures"]["rewardMean"] == [0.1, 0.5, 0.9]


async def test_a_list_of_metrics_is_short(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    keep(api, "history", history_data(History(series=SERIES)))
    assert await download.download(options("download", "--what", "metrics", "--list"), api.workspace) == Exit.OK
    assert capsys.readouterr().out.splitlines() == [
        "metrics.json: results, and curves of 3 steps",
        "To copy it: clotho run download mine --what metrics",
    ]


async def test_an_attempt_without_logs_is_an_error(api: FakeApi) -> None:
    keep(api, "logs", kept_logs())
    with pytest.raises(Failure, match="no log of a pod is kept of attempt 7 of run mine"):
        await logs.logs(options("logs", "--attempt", "7"), api.workspace)
