"""`run logs` for a reader: time, level, message and tracebacks; JSON for programs."""

import argparse
import json
from collections.abc import AsyncIterator, Mapping

import pytest

from clotho.cli import arguments
from clotho.cli.commands import logs
from clotho.cli.failure import Exit
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
    fake.texts[f"{POD}/log"] = "\n".join([*map(json.dumps, ENTRIES), "plain {", '{"not": "ours"}']).encode()
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
    assert entries[2] == {"component": "trainer", "message": "plain {"}


@pytest.mark.parametrize(
    ("words", "query"),
    [
        (["-f"], {"container": "main", "follow": "true"}),
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
