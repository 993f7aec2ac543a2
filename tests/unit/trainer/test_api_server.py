"""Requests are retried while the API server restarts; a refusal is final."""

import asyncio

import msgspec
import pytest

from clotho_contract.retry import TransientError
from clotho_trainer.failures import TrainerError
from clotho_trainer.rollouts.api_server import Lease, retried


class Flaky:
    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise TransientError("503 starting", retry_after=0.001)
        return "answer"


async def test_a_server_that_restarts_is_waited_for() -> None:
    flaky = Flaky(failures=3)
    assert await retried(flaky, limit_seconds=lambda: 60, what="the server") == "answer"
    assert flaky.calls == 4


async def test_retries_end_with_a_clear_error() -> None:
    with pytest.raises(TrainerError, match="no answer from the server for 0 s: 503 starting") as caught:
        await retried(Flaky(failures=10**9), limit_seconds=lambda: 0.01, what="the server")
    assert caught.value.reason == "DependencyUnavailable"


async def test_a_refusal_is_not_repeated() -> None:
    calls = []

    async def refuse() -> None:
        calls.append(1)
        raise TrainerError("Unauthorized", "no")

    with pytest.raises(TrainerError):
        await asyncio.wait_for(retried(refuse, limit_seconds=lambda: 60, what="the server"), timeout=10)
    assert len(calls) == 1


def test_the_same_batch_has_the_same_digest_under_another_lease() -> None:
    def lease(id: str, batch: str) -> Lease:
        return msgspec.json.decode(f'{{"lease_id": "{id}", "expires_in": 1, "batch": {batch}}}', type=Lease)

    assert lease("a", '[{"x": 1}]').digest() == lease("b", '[{"x": 1}]').digest()
    assert lease("a", '[{"x": 1}]').digest() != lease("a", '[{"x": 2}]').digest()
