"""One thread owns the ledger. Changes that arrive together share a commit; none is answered before it is on disk."""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from clotho_api_server.refusals import RefusalError, StorageError
from clotho_api_server.state.ledger import Ledger
from clotho_api_server.state.shares import Snapshot

log = logging.getLogger(__name__)
T = TypeVar("T")
COMMIT_BYTES: Final = 64 * 1024**2  # a commit that grows beyond this is flushed before more is added
STUCK_AFTER_SECONDS: Final = 60.0


class _Change(Generic[T]):
    """What to do with the ledger, how many bytes it writes, and the future of its result."""

    def __init__(self, apply: Callable[[Ledger], T], weight: int, loop: asyncio.AbstractEventLoop) -> None:
        self.weight = weight
        self.future: asyncio.Future[T] = loop.create_future()
        self._apply = apply
        self._loop = loop
        self._result: T | None = None
        self._error: Exception | None = None

    def run(self, ledger: Ledger) -> None:
        try:
            self._result = self._apply(ledger)
        except RefusalError as refusal:
            self._error = refusal

    def fail(self, error: Exception) -> None:
        self._error = error

    def settle(self) -> None:
        if self.future.cancelled():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)  # type: ignore[arg-type]


class Journal:
    """`publish` is called on the event loop with the new state, before the changes get their results."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        ledger: Ledger,
        publish: Callable[[Snapshot], None],
        observe_write: Callable[[float], None],
    ) -> None:
        self._db = connection
        self._ledger = ledger
        self._publish = publish
        self._observe_write = observe_write
        self._loop = asyncio.get_running_loop()
        self._changes: queue.SimpleQueue[_Change[Any] | None] = queue.SimpleQueue()
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    async def change(self, apply: Callable[[Ledger], T], weight: int = 0) -> T:
        change = _Change(apply, weight, self._loop)
        self._changes.put(change)
        return await change.future

    async def close(self) -> None:
        """Changes that are queued are still written."""
        self._changes.put(None)
        await asyncio.to_thread(self._thread.join)
        self._db.close()

    @property
    def problem(self) -> str | None:
        since = self._busy_since
        if not self._thread.is_alive():
            return "the thread that writes to the disk has ended"
        if since is not None and time.monotonic() - since > STUCK_AFTER_SECONDS:
            return f"a write to the disk has been going on for {time.monotonic() - since:.0f} s"
        return None

    def _work(self) -> None:
        while (first := self._changes.get()) is not None:
            changes, is_last = self._gather(first)
            self._busy_since = time.monotonic()
            self._commit(changes)
            self._observe_write(time.monotonic() - self._busy_since)
            self._busy_since = None
            self._loop.call_soon_threadsafe(self._announce, self._ledger.snapshot(), changes)
            if is_last:
                return

    def _gather(self, first: _Change[Any]) -> tuple[list[_Change[Any]], bool]:
        changes, weight = [first], first.weight
        while weight < COMMIT_BYTES:
            try:
                change = self._changes.get_nowait()
            except queue.Empty:
                break
            if change is None:
                return changes, True
            changes.append(change)
            weight += change.weight
        return changes, False

    def _commit(self, changes: list[_Change[Any]]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for change in changes:
                change.run(self._ledger)
            self._ledger.flush()
            self._db.execute("COMMIT")
        except Exception as error:  # a full disk or a mistake of ours: nothing of this commit has happened
            log.exception("could not write; %d changes were undone", len(changes))
            self._undo()
            is_the_disk = isinstance(error, sqlite3.Error | OSError)
            reason = StorageError(f"could not write to the disk: {error}") if is_the_disk else error
            for change in changes:
                change.fail(reason)
        else:
            self._ledger.tidy()

    def _undo(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._ledger.load()

    def _announce(self, state: Snapshot, changes: list[_Change[Any]]) -> None:
        self._publish(state)
        for change in changes:
            change.settle()
