"""Memory for bodies: no client holds more than it has sent, and none can hold up all the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from clotho_contract.memory_budget import Budget, Reservation


async def is_granted(held: Reservation, amount: int) -> bool:
    """Whether it grows at once; if not, it goes on waiting."""
    growing = asyncio.create_task(held.grow(amount))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return growing.done()


@asynccontextmanager
async def reservations(total: int, count: int) -> AsyncIterator[tuple[list[Reservation], list[AsyncExitStack]]]:
    """Of one budget, and how to end each."""
    budget = Budget(total)
    ends = [AsyncExitStack() for _ in range(count)]
    yield [await end.enter_async_context(budget.reservation()) for end in ends], ends
    for end in ends:
        await end.aclose()


async def test_only_received_bytes_use_memory() -> None:
    async with reservations(10, 2) as ((_, second), _):
        assert await is_granted(second, 5)


async def test_waiting_bodies_are_admitted_oldest_first() -> None:
    async with reservations(10, 4) as ((a, b, c, d), ends):
        assert await is_granted(a, 4)
        assert await is_granted(b, 3)
        assert not await is_granted(c, 5)
        assert not await is_granted(d, 1)  # it would fit, but c is older
        await ends[1].aclose()
        await asyncio.sleep(0)
        assert (c.size, d.size) == (5, 1)


async def test_the_oldest_body_never_waits() -> None:
    async with reservations(10, 3) as ((a, b, c), ends):
        assert await is_granted(b, 5)
        assert await is_granted(c, 5)
        assert await is_granted(a, 3), "else three bodies would wait for each other"
        await ends[0].aclose()
        assert await is_granted(b, 1)


async def test_one_large_body_leaves_half_to_the_others() -> None:
    async with reservations(10, 3) as ((large, b, c), ends):
        assert await is_granted(large, 1000)
        assert await is_granted(b, 5)
        await ends[1].aclose()
        assert not await is_granted(c, 6), "only one body may be larger than half of the budget"
        await ends[0].aclose()
        await asyncio.sleep(0)
        assert c.size == 6


async def test_a_body_that_stops_waiting_leaves_the_budget_whole() -> None:
    async with reservations(10, 3) as ((a, b, c), ends):
        assert await is_granted(a, 5)
        assert await is_granted(b, 5)
        waiting = asyncio.create_task(c.grow(5))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await ends[1].aclose()
        assert await is_granted(c, 5)
