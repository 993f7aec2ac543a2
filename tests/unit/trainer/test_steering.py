"""A new number of steps reaches the trainer over HTTP before the mounted file changes."""

from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec import structs

from clotho_contract import steering
from clotho_contract.config import ConfigError, RunConfig, RunIdentity
from clotho_contract.settings import Model, Training
from clotho_trainer.process.status_server import status_application
from clotho_trainer.process.step_target import StepTarget
from clotho_trainer.reporting.board import Board

CONFIG = RunConfig(
    run=RunIdentity(name="a", namespace="default", id="a"), model=Model(name="m"), training=Training(steps=400)
)


class File:
    """The mounted config."""

    def __init__(self, steps: int | None) -> None:
        self.steps = steps

    def read(self) -> RunConfig:
        if self.steps is None:
            raise ConfigError("run.yaml: it is torn")
        return structs.replace(CONFIG, training=Training(steps=self.steps))


def test_the_latest_change_counts_whichever_way_it_came() -> None:
    file = File(400)
    target = StepTarget(400, file.read)
    target.set(1500)
    assert target() == 1500, "the file still has the old number"
    file.steps = 1500
    assert target() == 1500
    file.steps = 900
    assert target() == 900, "a later edit that only the file brought"
    file.steps = None
    assert target() == 900


@pytest.fixture
async def trainer() -> AsyncIterator[tuple[TestClient, list[int]]]:  # type: ignore[type-arg]
    sent: list[int] = []
    app = status_application(Board(400, stall_seconds=60), "secret", sent.append)
    async with TestClient(TestServer(app)) as client:
        yield client, sent


@pytest.mark.parametrize(
    ("authorization", "body", "status"),
    [
        ("Bearer secret", steering.encode(1500), 200),
        ("Bearer wrong", steering.encode(1500), 401),
        ("Basic secret", steering.encode(1500), 401),
        ("", steering.encode(1500), 401),
        ("Bearer secret", b'{"steps": 0}', 422),
        ("Bearer secret", b'{"steps": "many"}', 422),
        ("Bearer secret", b"[" * 500, 422),
        ("Bearer secret", b'{"x":' + b"[" * 1010, 422),
        ("Bearer secret", b" " * 100_000, 413),
    ],
)
async def test_only_the_operator_sets_the_steps(
    trainer: tuple[TestClient, list[int]],  # type: ignore[type-arg]
    authorization: str,
    body: bytes,
    status: int,
) -> None:
    client, sent = trainer
    answer = await client.put(steering.STEPS_PATH, data=body, headers={"Authorization": authorization})
    assert answer.status == status, await answer.text()
    assert sent == ([1500] if status == 200 else [])


async def test_a_trainer_without_a_token_accepts_no_steps() -> None:
    app = status_application(Board(400, stall_seconds=60), "", lambda steps: None)
    async with TestClient(TestServer(app)) as client:
        answer = await client.put(steering.STEPS_PATH, data=steering.encode(5), headers={"Authorization": "Bearer "})
        assert answer.status == 401
