"""The stream of items that workers draw from: synchronous or not, started again when it ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from clotho_environment.sdk.environment import AnyEnvironment, EnvironmentFailedError


class ItemStream:
    def __init__(self, environment: AnyEnvironment) -> None:
        self._environment = environment
        self._epoch: AsyncIterator[Any] | None = None
        self._lock = asyncio.Lock()  # an async generator cannot be asked twice at once
        self.epochs = 0

    async def next(self) -> Any:
        async with self._lock:
            for _ in range(2):
                if self._epoch is None:
                    self._epoch = _iterate(self._environment.items())
                try:
                    return await anext(self._epoch)
                except StopAsyncIteration:
                    self._epoch = None
                    self.epochs += 1
                except BaseException:
                    self._epoch = None  # a generator that raised is over; the next call starts a new one
                    raise
            raise EnvironmentFailedError(f"{type(self._environment).__name__}.items() has no items")


async def _iterate(items: Any) -> AsyncIterator[Any]:
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
        return
    try:
        iterator = iter(items)
    except TypeError:
        raise TypeError(f"items() returned a {type(items).__name__}; return an iterable of items") from None
    for item in iterator:
        yield item
