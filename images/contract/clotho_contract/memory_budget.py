"""The memory that request bodies may take together: reserved as their bytes arrive, never by what a client declares."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Reservation:
    """What one body holds. Grows with it, and is given back as a whole."""

    def __init__(self, budget: "Budget") -> None:
        self._budget = budget
        self.size = 0
        self.wanted = 0
        self.granted: asyncio.Future[None] | None = None

    async def grow(self, amount: int) -> None:
        """Waits until there is memory for as many bytes more."""
        self.wanted = amount
        self.granted = asyncio.get_running_loop().create_future()
        self._budget.grant()
        await self.granted


class Budget:
    """The oldest body never waits, so that there is always progress; its client must send at a minimum rate.

    Only the oldest may exceed half of the budget, and no body counts for more than that half: one large or slow body
    leaves the other half to the rest. Among bodies that wait for memory the oldest is served first.
    """

    def __init__(self, total: int) -> None:
        self._half = total // 2
        self._free = total
        self._held: dict[Reservation, None] = {}  # in the order of their start

    @asynccontextmanager
    async def reservation(self) -> AsyncIterator[Reservation]:
        held = Reservation(self)
        self._held[held] = None
        try:
            yield held
        finally:
            del self._held[held]
            self._free += min(held.size, self._half)
            self.grant()

    def grant(self) -> None:
        is_oldest = True
        for held in self._held:
            if held.granted is not None and not held.granted.done():
                size = held.size + held.wanted
                counted = min(size, self._half) - min(held.size, self._half)
                if is_oldest or (size <= self._half and counted <= self._free):
                    self._free -= counted
                    held.size = size
                    held.granted.set_result(None)
                elif size <= self._half:
                    return
            is_oldest = False
