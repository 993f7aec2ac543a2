"""SIGTERM for commands that create something for their own use: they are cancelled, and so delete it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clotho.cli.failure import Exit, Failure


@asynccontextmanager
async def cancelled_by_sigterm() -> AsyncIterator[None]:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    except asyncio.CancelledError:
        if not is_terminated:
            raise
        raise Failure("terminated", Exit.TERMINATED) from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
