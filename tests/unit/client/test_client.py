"""The Python client without a cluster: imports, frames, the view in a notebook, and errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clotho.api.history import KeptLog, log_data
from clotho.cli.session import lookup
from clotho.client import ClothoError, Run, client, frames
from clotho.client import run as runs
from clotho.client.connection import Connection
from clotho.client.display import as_html
from clotho.client.errors import explained
from clotho.cluster.outcomes import Transient
from rig.fake_api import NAMESPACE, FakeApi

SPEC = {"model": {"name": "m"}, "training": {"steps": 100, "batchSize": 8}}
PROGRESS = {"step": 50, "totalSteps": 100, "percent": 50, "rewardMean": 0.5, "loss": 0.25}
HISTORY = [{"step": 10, "rewardMean": 0.1}, {"step": 50, "rewardMean": 0.4, "loss": 0.3}]
SOURCES = [str(Path(__file__).parents[3] / folder) for folder in ("operator", "images/contract")]


class FakeConnection:
    def __init__(self, api: FakeApi) -> None:
        self.workspace = api.workspace

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        with explained():
            return asyncio.run(work)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


def a_run(api: FakeApi, phase: str = "Running", message: str = "") -> Run:
    status = {"phase": phase, "message": message, "progress": PROGRESS, "history": HISTORY}
    return Run(cast(Connection, FakeConnection(api)), api.add("TrainingRun", "mine", SPEC, status))


def test_the_package_is_imported_without_the_client() -> None:
    program = (
        "import sys, clotho; before = set(sys.modules); clotho.Client\n"
        "print(*{'aiohttp', 'msgspec', 'clotho.cli', 'clotho.client'} & before)\n"
        "try: clotho.Nothing\n"
        "except AttributeError as error: print(error)"
    )
    paths = {"PYTHONPATH": ":".join(SOURCES)}
    done = subprocess.run([sys.executable, "-c", program], env=paths, capture_output=True, text=True, check=True)
    assert done.stdout == "\nmodule 'clotho' has no attribute 'Nothing'\n"


def test_frames_are_lists_without_pandas(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "find_spec", lambda _: None)
    assert a_run(api).history() == [
        {"step": 10, "reward": 0.1, "loss": None},
        {"step": 50, "reward": 0.5, "loss": 0.25},
    ]


def test_frames_are_data_frames_with_pandas(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = SimpleNamespace(DataFrame=lambda rows: ("frame", rows))
    monkeypatch.setattr(frames, "find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    kind, rows = frames.frame([frames.run_row(a_run(api).body)])
    assert kind == "frame"
    assert {key: rows[0][key] for key in ("name", "phase", "step", "steps", "reward", "best_reward")} == {
        "name": "mine",
        "phase": "Running",
        "step": 50,
        "steps": 100,
        "reward": 0.5,
        "best_reward": 0.5,
    }


def test_view_in_a_notebook_is_escaped(api: FakeApi) -> None:
    view = as_html(a_run(api, message="<script>alert('1')</script>").body)
    assert view.startswith("<pre>mine  Running")
    assert "<script>" not in view
    assert "&lt;script&gt;" in view


def test_a_notebook_shows_the_live_view(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    display = SimpleNamespace(HTML=lambda text: text, display=lambda *_, **__: handle)
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1), display=display)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    a_run(api, "Completed").wait()
    assert len(shown) == 1
    assert "mine  Completed" in shown[0]


def test_waiting_shows_each_change_and_ends_with_the_run(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(api, message="Training: step 50/100.")

    def finish(_: float) -> None:
        status = api.objects[api.workspace.path("TrainingRun", "mine")]["status"]
        status |= {"phase": "Failed", "message": "Out of memory."}

    monkeypatch.setattr(runs.time, "sleep", finish)
    assert run.wait().phase == "Failed"
    first, last = capsys.readouterr().out.splitlines()
    assert "Running: Training: step 50/100." in first
    assert "Failed: Out of memory." in last


def test_waiting_outlasts_a_cluster_that_does_not_answer(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(api, "Completed")
    api.refusals["get"] = Transient("get x", "connection refused")

    async def answer_again(_: float) -> None:
        api.refusals.clear()

    monkeypatch.setattr(lookup.asyncio, "sleep", answer_again)
    assert run.wait(progress=False).phase == "Completed"


def test_waiting_ends_at_the_timeout(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.time, "sleep", lambda _: None)
    with pytest.raises(TimeoutError, match="run mine is not finished after 0 s; it continues: Training"):
        a_run(api, message="Training: step 50/100.").wait(0, progress=False)


def test_logs_of_pods_that_are_gone_are_those_that_were_kept(api: FakeApi) -> None:
    run = a_run(api)
    log = KeptLog(attempt=1, restarts=0, title="trainer", container="main", text="one\ntwo")
    name = f"mine-{run.body['metadata']['uid'].replace('-', '')[:8]}-logs"
    api.objects[f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}"] = {
        "metadata": {"name": "x"},
        "data": log_data((log,)),
    }
    assert run.logs() == "trainer  one\ntrainer  two"
    assert run.logs("trainer", tail=1) == "trainer  two"


def test_logs_are_readable(api: FakeApi) -> None:
    run = a_run(api)
    labels = {"clotho.dev/run": "mine", "app.kubernetes.io/component": "trainer"}
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    api.objects[f"{pods}/mine-trainer"] = {"metadata": {"name": "mine-trainer", "labels": labels}}
    api.texts[f"{pods}/mine-trainer/log"] = b'{"time":"2026-11-15T12:00:01Z","level":"info","message":"step 1"}\nplain'
    assert run.logs("trainer") == "trainer  11-15 12:00:01 INFO  step 1\ntrainer  plain"
    with pytest.raises(ClothoError, match="has no environment pod now"):
        run.logs("environment")


def test_a_refused_setting_is_named() -> None:
    with pytest.raises(
        ClothoError, match=r"settings: training.stps: a run has no such field; did you mean training.steps"
    ):
        client._changed({"metadata": {"name": "a"}, "spec": SPEC}, "", {"training.stps": 3})


def test_errors_have_the_words_of_the_command_line(api: FakeApi) -> None:
    run = a_run(api, "Completed")
    with pytest.raises(ClothoError, match="run mine is Completed and cannot be stopped"):
        run.stop()
    api.objects[f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/mine-uidofmin-trainer"] = {"metadata": {}}
    run.delete(with_claim=True)
    assert api.objects == {}
    with pytest.raises(ClothoError, match="not found"):
        run.refresh()
