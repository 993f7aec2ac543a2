"""Bounds on request bodies."""

import asyncio
import gzip

import pytest

from clotho_api_server.http.bodies import Budget, expand
from clotho_api_server.refusals import RefusalError, TooLargeError


def test_a_body_is_expanded() -> None:
    assert expand(gzip.compress(b"x" * 1000), 1000) == b"x" * 1000


def test_a_bomb_is_refused_before_it_is_expanded() -> None:
    with pytest.raises(TooLargeError):
        expand(gzip.compress(bytes(10_000_000)), 1000)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"not gzip",
        gzip.compress(b"x" * 1000)[:-9],
        gzip.compress(b"x" * 1000)[:-4] + (10).to_bytes(4, "little"),  # a bomb that lies about its size
        gzip.compress(b"a") + gzip.compress(b"b"),
    ],
)
def test_damaged_gzip_is_refused(damaged: bytes) -> None:
    with pytest.raises(RefusalError):
        expand(damaged, 10_000)


async def test_a_budget_lets_in_what_fits_in_the_order_of_asking() -> None:
    budget = Budget(10)
    entered: list[str] = []
    leave = {name: asyncio.Event() for name in "abc"}

    async def hold(name: str, amount: int) -> None:
        async with budget.reserve(amount):
            entered.append(name)
            await leave[name].wait()

    tasks = [asyncio.create_task(hold(name, amount)) for name, amount in [("a", 6), ("b", 6), ("c", 2)]]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert entered == ["a"]  # c would fit, but b asked first
    leave["a"].set()
    await tasks[0]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert entered == ["a", "b", "c"]
    leave["b"].set()
    leave["c"].set()
    await asyncio.gather(*tasks)


async def test_who_stops_waiting_leaves_the_budget_whole() -> None:
    budget = Budget(10)
    async with budget.reserve(10):
        waiting = asyncio.create_task(_enter(budget, 5))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.wait_for(_enter(budget, 99), 5)  # more than there is counts as all there is


async def _enter(budget: Budget, amount: int) -> None:
    async with budget.reserve(amount):
        pass
