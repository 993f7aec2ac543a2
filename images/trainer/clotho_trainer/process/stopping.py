"""A stop that is asked for by a signal."""

import asyncio
import signal
from collections.abc import Coroutine

from clotho_contract.termination import Termination

STOPPED_EARLY = Termination(reason="Stopped", message="stopped before training began")


def stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def unless_stopped(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Whether the work was done before the stop came."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        return working.done()
    finally:
        working.cancel()
        stopping.cancel()
