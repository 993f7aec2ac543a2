"""The oracles of the fault campaigns: each recognises what it is there for, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from faults import oracles
from faults.calls import Numbering, Write
from faults.masking import differences
from faults.proxy import Recorded

CREATE = Recorded(Write("create", "pods", "r-trainer"), {}, 201)
DELETE = Recorded(Write("delete", "pods", "r-trainer"), {}, 200)


def status(attempt: int, step: int, *, run: str = "u", code: int = 200) -> Recorded:
    body: dict[str, Any] = {"metadata": {"uid": run}, "status": {"attempt": attempt, "progress": {"step": step}}}
    return Recorded(Write("update", "trainingruns/status", "r"), body, code)


@pytest.mark.parametrize(
    ("recorded", "complaints"),
    [
        ([CREATE], []),
        ([CREATE, CREATE], ["created 2 times instead of 1: pods r-trainer"]),
        ([], ["created 0 times instead of 1: pods r-trainer"]),
        ([Recorded(CREATE.write, {}, 409), CREATE], []),
        ([CREATE, DELETE], ["deleted 1 times instead of 0: pods r-trainer"]),
    ],
)
def test_creates_and_deletes_are_counted_by_what_the_server_did(
    recorded: list[Recorded], complaints: list[str]
) -> None:
    assert oracles.same_creates_and_deletes([CREATE], recorded) == complaints


@pytest.mark.parametrize(
    ("recorded", "is_monotone"),
    [
        ([status(1, 5), status(1, 6), status(2, 5)], True),
        ([status(1, 5), status(1, 4)], False),
        ([status(2, 5), status(1, 6)], False),
        ([status(1, 5), status(1, 4, code=409)], True),
        ([status(1, 5), status(0, 0, run="another")], True),
    ],
)
def test_steps_and_attempts_never_decrease(recorded: list[Recorded], is_monotone: bool) -> None:
    assert (oracles.steps_monotone(recorded) == []) is is_monotone


def test_write_loop_is_recognised() -> None:
    assert oracles.no_loop([CREATE], [CREATE] * 10) == []
    assert oracles.no_loop([CREATE], [CREATE] * 100)


@pytest.mark.parametrize("line", ["Traceback (most recent call last):", '{"level": "error", "exception": "..."}'])
def test_traceback_in_a_log_is_recognised(line: str) -> None:
    assert oracles.no_traceback(f"leading\n{line}\n")
    assert oracles.no_traceback("leading\nretrying in 0.2 s: 409\n") == []


def test_replaced_claim_and_second_trainer_are_recognised() -> None:
    assert oracles.claim_kept(["a", "a"]) == oracles.one_trainer(1) == []
    assert oracles.claim_kept(["a", "b"])
    assert oracles.one_trainer(2)


def test_differences_name_the_place() -> None:
    before = {"pods/r": {"spec": {"containers": [{"image": "a"}]}}, "services/r": {}}
    after = {"pods/r": {"spec": {"containers": [{"image": "b"}]}}}
    assert differences(before, after) == [
        '/pods/r/spec/containers/0/image: expected "a", found "b"',
        '/services/r: expected {}, found "(absent)"',
    ]


def test_writes_of_the_same_name_are_numbered() -> None:
    numbering, write = Numbering(), Write("create", "pods", "r-trainer")
    assert [str(numbering.number(write)) for _ in range(2)] == [
        "create pods r-trainer #1",
        "create pods r-trainer #2",
    ]
