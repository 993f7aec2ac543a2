"""`run logs` for a reader: time, level, message and tracebacks; JSON for programs."""

import argparse
import json
from collections.abc import AsyncIterator, Mapping

import pytest

from clotho.cli import arguments
from clotho.cli.commands import logs
from clotho.cli.failure import Exit
from clotho.cluster.outcomes import Transient
from clotho_contract.history import LOG_KEY
from rig.fake_api import NAMESPACE, FakeApi

POD = f"/api/v1/namespaces/{NAMESPACE}/pods/t"
LABELS = {"clotho.dev/run": "mine", "app.kubernetes.io/component": "trainer"}
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: bad \x1b[2J'
ENTRIES = [
    {"time": "2026-11-15T12:00:01.250+00:00", "level": "info", "logger": "x", "message": "step 3", "loss": 0.5},
    {"time": "2026-11-15T12:00:02.000+00:00", "level": "error", "message": "two\nlines", "exception": TRACEBACK},
]


def options(*words: str) -> argparse.Namespace:
    return arguments.parse("clotho", ["run", "logs", "mine", *words])


@pytest.fixture
def api() -> FakeApi:
    fake = FakeApi()
    fake.add("TrainingRun", "mine", {"training": {"steps": 9}})
    fake.objects[POD] = {"metadata": {"name": "t", "labels": LABELS}}
    record = {"time": "2026-11-15T12:00:03+00:00", "level": "info", "message": "for the operator", LOG_KEY: {}}
    lines = [*map(json.dumps, [*ENTRIES, record]), "plain {", '{"not": "ours"}']
    fake.texts[f"{POD}/log"] = "\n".join(lines).encode()
    return fake


async def test_lines_are_readable_and_tracebacks_are_real(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await logs.logs(options(), api.workspace) == Exit.OK
    assert capsys.readouterr().out.splitlines() == [
        "trainer  11-15 12:00:01 INFO  step 3  loss=0.5",
        "trainer  11-15 12:00:02 ERROR two",
        "trainer    lines",
        "trainer    Traceback (most recent call last):",
        'trainer      File "a.py", line 1, in f',
        "trainer    ValueError: bad \ufffd[2J",
        "trainer  plain {",
        'trainer  {"not": "ours"}',
    ]


async def test_json_is_one_object_a_line(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await logs.logs(options("-o", "json"), api.workspace) == Exit.OK
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert entries[:2] == [{"component": "trainer", **each} for each in ENTRIES]
    assert entries[3] == {"component": "trainer", "message": "plain {"}


@pytest.mark.parametrize(
    ("words", "query"),
    [
        ([], {"container": "main"}),
        (["--since", "15m", "--tail", "3"], {"container": "main", "sinceSeconds": "900", "tailLines": "3"}),
    ],
)
async def test_options_reach_the_api_server(
    api: FakeApi, words: list[str], query: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, stream = [], api.stream

    def note(path: str, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        queries.append(params)
        return stream(path, params)

    monkeypatch.setattr(api, "stream", note)
    await logs.logs(options(*words), api.workspace)
    assert queries == [query]


async def test_a_run_is_followed_from_its_first_pod_through_lost_connections_to_its_end(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0)
    api.objects[POD]["metadata"]["uid"] = "1"
    run = api.objects[f"{api.workspace.folder('TrainingRun')}/mine"]
    run["status"] = {"phase": "Starting", "message": "Pulling the image."}
    queries: list[Mapping[str, str]] = []

    def note(message: str) -> None:
        """The pod starts once there is something to wait for."""
        print(f"({message})")
        api.objects[POD]["status"] = {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}

    async def stream(path: str, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        queries.append(params)
        yield f"line {len(queries)}\n".encode()
        if len(queries) == 1:
            raise Transient(f"get {path}", "Server disconnected")
        run["status"] = {"phase": "Completed", "message": "Completed."}

    monkeypatch.setattr(logs.output, "note", note)
    monkeypatch.setattr(api, "stream", stream)
    assert await logs.logs(options("-f", "--tail", "3"), api.workspace) == Exit.OK
    shown = ["(Pulling the image.)", "trainer  line 1", "(trainer: Server disconnected)", "trainer  line 2"]
    assert capsys.readouterr().out.splitlines() == [*shown, "(Completed.)"]
    follow = {"container": "main", "follow": "true"}
    assert queries == [{**follow, "tailLines": "3"}, {**follow, "sinceSeconds": "1"}]
