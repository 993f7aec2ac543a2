"""Runs coroutines from synchronous code, on a loop in a thread: a notebook has a running loop of its own."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from clotho.client.errors import ClothoError, explained
from clotho.cluster.client import ApiClient
from clotho.cluster.credentials import Credentials
from clotho.workspace.objects import Workspace

T = TypeVar("T")
TIMEOUT_SECONDS = 20.0


class Connection:
    """One HTTP session to one cluster; `workspace` must be used through `call` only."""

    def __init__(self, credentials: Credentials, namespace: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clotho-client", daemon=True)
        self._thread.start()
        self.workspace = self.call(_open(credentials, namespace))
        atexit.register(self.close)  # a script need not close it

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Blocks until it is done; Ctrl-C cancels it."""
        if self._loop.is_closed():
            work.close()
            raise ClothoError("this client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            with explained():
                return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        if self._loop.is_closed():
            return
        atexit.unregister(self.close)
        self.call(self.workspace.client.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _open(credentials: Credentials, namespace: str) -> Workspace:
    client = ApiClient(credentials, timeout_seconds=TIMEOUT_SECONDS, user_agent="clotho-python")
    return Workspace(client, namespace or credentials.namespace)
