"""Detects environment code that blocks the event loop, from a thread: no coroutine runs while it is blocked."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

log = logging.getLogger(__name__)


class Watchdog:
    """Warns when the event loop is blocked, and calls `give_up` when it stays so."""

    def __init__(self, give_up: Callable[[str], None], *, warn_seconds: float, limit_seconds: float) -> None:
        self._give_up = give_up
        self._warn_seconds = warn_seconds
        self._limit_seconds = limit_seconds
        self._last_beat = time.monotonic()
        self._main_thread = threading.get_ident()
        self._closed = threading.Event()

    async def watch(self) -> None:
        """Beat until cancelled."""
        thread = threading.Thread(target=self._observe, name="watchdog", daemon=True)
        thread.start()
        pace = min(1.0, self._warn_seconds / 4)
        try:
            while True:
                self._last_beat = time.monotonic()
                await asyncio.sleep(pace)
        finally:
            self._closed.set()

    def _observe(self) -> None:
        warned = False
        while not self._closed.wait(min(1.0, self._warn_seconds / 4)):
            silence = time.monotonic() - self._last_beat
            if silence > self._limit_seconds:
                self._give_up(f"environment code has blocked the event loop for {silence:.0f} s, at {self._place()}")
                return
            if silence > self._warn_seconds and not warned:
                log.warning("environment code blocks the event loop at %s; use await, or a thread", self._place())
            warned = silence > self._warn_seconds

    def _place(self) -> str:
        frame = sys._current_frames().get(self._main_thread)
        if frame is None:
            return "an unknown place"
        innermost = traceback.extract_stack(frame)[-1]
        return f"{innermost.filename}:{innermost.lineno} in {innermost.name}"
