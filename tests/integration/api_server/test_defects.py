"""Every known way in which Atropos' server loses or blocks data: ours has none, the original fails each check."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.trajectory_servers import ServerProcess, start_atropos, start_ours, write_config

TRAINER = {
    "wandb_group": "g",
    "wandb_project": "p",
    "batch_size": 8,
    "max_token_len": 0,
    "checkpoint_dir": "/c",
    "save_checkpoint_interval": 5,
    "starting_step": 0,
    "num_steps": 100,
}
ENVIRONMENT = {"max_token_length": 64, "desired_name": "env", "weight": 1.0, "group_size": 4}


class Subject:
    """A server under examination, and how to start it again after a crash."""

    def __init__(self, start: Callable[[], ServerProcess], limit_seconds: float) -> None:
        self._start = start
        self.limit_seconds = limit_seconds
        self.server = start()

    def crash_and_restart(self) -> None:
        self.server.kill()
        self.server = self._start()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        request = urllib.request.Request(  # noqa: S310
            self.server.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def register(self, **changes: Any) -> None:
        assert self.ask("POST", "/register", {**TRAINER, **changes})[0] == 200

    def register_environment(self, **changes: Any) -> tuple[int, Any]:
        self.ask("GET", "/batch")
        return self.ask("POST", "/register-env", {**ENVIRONMENT, **changes})

    def send(self, *marks: int, size: int = 4, width: int = 1, **fields: Any) -> list[int]:
        rows = {mark: [[mark] * width] * size for mark in marks}
        return [
            self.ask("POST", "/scored_data", {"tokens": row, "masks": row, "scores": [1.0] * size, **fields})[0]
            for row in rows.values()
        ]

    def batch(self) -> list[int] | None:
        status, content = self.ask("GET", "/batch")
        assert status == 200
        assert "status" not in content, content
        return None if content["batch"] is None else [group["tokens"][0][0] for group in content["batch"]]

    def step(self) -> int:
        return int(self.ask("GET", "/status")[1]["current_step"])


def data_before_registration_does_not_poison_the_server(subject: Subject) -> None:
    subject.send(1)
    subject.register()
    subject.send(2)
    assert subject.batch() == [1, 2]


def a_restarted_trainer_may_change_batch_size_and_step(subject: Subject) -> None:
    subject.register()
    subject.register(batch_size=4, starting_step=7)
    assert subject.ask("GET", "/info")[1]["batch_size"] == 4
    assert subject.step() == 7


def the_step_counts_what_was_handed_out_not_what_could_be_formed(subject: Subject) -> None:
    subject.register()
    subject.send(1, 2, 3, 4)
    subject.batch()
    assert subject.step() == 1


def batches_are_first_in_first_out(subject: Subject) -> None:
    subject.register()
    subject.send(1, 2, 3, 4)
    assert [subject.batch(), subject.batch()] == [[1, 2], [3, 4]]


def impossible_group_sizes_are_refused_at_once(subject: Subject) -> None:
    subject.register()
    status, answer = subject.register_environment(group_size=3)
    assert status == 422
    assert "8 = 2 x 3 + 2" in answer


def groups_that_cannot_fill_a_batch_do_not_block_those_that_can(subject: Subject) -> None:
    subject.send(1, size=3)  # before the batch size is known
    subject.register()
    subject.send(2, 3)
    assert subject.batch() == [2, 3]


def a_dead_environment_blocks_no_batch(subject: Subject) -> None:
    subject.register()
    subject.register_environment(min_batch_allocation=0.5)
    subject.register_environment(desired_name="alive", weight=1.0)
    subject.send(1, 2, env_id=1)
    deadline = time.monotonic() + subject.limit_seconds
    while (batch := subject.batch()) is None and time.monotonic() < deadline:
        subject.ask("GET", "/status-env", {"env_id": 1})  # only this one is heard
        time.sleep(0.1)
    assert batch == [1, 2]
    assert subject.ask("GET", "/status-env", {"env_id": 1})[1]["env_weight"] == 1.0


def the_only_environment_may_ask_after_disconnecting(subject: Subject) -> None:
    subject.register()
    subject.register_environment()
    subject.ask("POST", "/disconnect-env", {"env_id": 0})
    assert subject.ask("GET", "/status-env", {"env_id": 0})[0] == 200


def a_batch_survives_a_client_that_gives_up(subject: Subject) -> None:
    subject.register()
    subject.send(1, 2, width=200_000)
    connection = http.client.HTTPConnection("127.0.0.1", subject.server.port, timeout=60)
    connection.request("GET", "/batch", headers={"Accept-Encoding": "identity"})
    connection.getresponse().read(1000)
    connection.close()
    deadline = time.monotonic() + subject.limit_seconds
    while (batch := subject.batch()) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert batch == [1, 2]
    assert subject.step() == 1


def the_queue_is_bounded(subject: Subject) -> None:
    subject.register()
    new = {"X-Clotho-Protocol": "1"}
    connection = http.client.HTTPConnection("127.0.0.1", subject.server.port, timeout=60)
    answers = set()
    for mark in range(40):
        body = json.dumps({"tokens": [[mark] * 5000] * 4, "masks": [[mark] * 5000] * 4, "scores": [1.0] * 4})
        connection.request("POST", "/scored_data", body, {"Content-Type": "application/json", **new})
        response = connection.getresponse()
        response.read()
        answers.add(response.status)
    connection.close()
    assert 429 in answers


def nothing_is_lost_in_a_crash(subject: Subject) -> None:
    subject.register(starting_step=3)
    subject.register_environment()
    subject.send(1, 2, env_id=0)
    subject.crash_and_restart()
    status, answer = subject.ask("GET", "/status-env", {"env_id": 0})
    assert (status, status == 200 and answer["self_queue_size"]) == (200, 2)
    assert subject.batch() == [1, 2]
    assert subject.step() == 4


DEFECTS = {
    data_before_registration_does_not_poison_the_server: "Trainer not registered",
    a_restarted_trainer_may_change_batch_size_and_step: r"assert 8 == 4",
    the_step_counts_what_was_handed_out_not_what_could_be_formed: r"assert 2 == 1",
    batches_are_first_in_first_out: r"assert \[\[3, 4\], \[1, 2\]\] == \[\[1, 2\], \[3, 4\]\]",
    impossible_group_sizes_are_refused_at_once: r"assert 200 == 422",
    a_dead_environment_blocks_no_batch: r"assert None == \[1, 2\]",
    the_only_environment_may_ask_after_disconnecting: r"assert 500 == 200",
    a_batch_survives_a_client_that_gives_up: r"assert None == \[1, 2\]",
    the_queue_is_bounded: r"assert 429 in \{200\}",
    nothing_is_lost_in_a_crash: r"assert \(500, False\) == \(200, 2\)",
}
"""What must hold -> how the original fails it. Any other failure is no proof of the defect."""

CHECKS = [*DEFECTS, groups_that_cannot_fill_a_batch_do_not_block_those_that_can]


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Subject]:
    config = write_config(tmp_path / "run.yaml", max_queue_bytes=10_000_000, environment_timeout=1)
    subject = Subject(lambda: start_ours(tmp_path / "data", "--config", str(config)), limit_seconds=60)
    yield subject
    subject.server.kill()


@pytest.fixture(scope="module")
def original_server(atropos: Path) -> Iterator[Subject]:
    subject = Subject(lambda: start_atropos(atropos), limit_seconds=3)
    yield subject
    subject.server.kill()


@pytest.fixture
def original(original_server: Subject) -> Subject:
    original_server.crash_and_restart()
    return original_server


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_ours_does_not_have_the_defect(ours: Subject, check: Callable[[Subject], None]) -> None:
    check(ours)


@pytest.mark.parametrize("check", DEFECTS, ids=lambda check: check.__name__)
def test_atropos_has_the_defect(original: Subject, check: Callable[[Subject], None]) -> None:
    with pytest.raises(AssertionError, match=DEFECTS[check]):
        check(original)
