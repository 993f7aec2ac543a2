"""Copies checkpoints to a bucket beside the training. Failures are reported and tried again, and stop nothing."""

import asyncio
import logging
import threading
from collections.abc import Callable

from clotho_contract.progress import CopyInfo
from clotho_trainer.training.bucket import Bucket, BucketError
from clotho_trainer.training.checkpoints import Checkpoints

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 5.0, 300.0
END_SECONDS = 600.0  # how long a finished run waits for its last copy
STOP_SECONDS = 20.0  # a stopped one has its grace period only


class Copier:
    """One thread; `wake` after each checkpoint, `drain` before the end."""

    def __init__(
        self,
        bucket: Bucket,
        checkpoints: Checkpoints,
        report: Callable[[CopyInfo], None],
        retry_seconds: float = FIRST_RETRY_SECONDS,
    ) -> None:
        self._bucket = bucket
        self._checkpoints = checkpoints
        self._report = report
        self._retry_seconds = retry_seconds
        self._wanted = threading.Event()
        self._idle = threading.Event()
        self._closed = False
        self._info = CopyInfo(location=bucket.location)
        report(self._info)
        self._thread = threading.Thread(target=self._work, name="copies", daemon=True)
        self.wake()
        self._thread.start()

    def wake(self) -> None:
        self._idle.clear()
        self._wanted.set()

    async def drain(self, stop: asyncio.Event) -> None:
        """Until the newest checkpoint is there, or the time is up: then it stays on the volume alone."""
        copied = asyncio.create_task(asyncio.to_thread(self._idle.wait, END_SECONDS))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({copied, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not copied.done():
            await asyncio.wait({copied}, timeout=STOP_SECONDS)
        stopping.cancel()
        is_copied, self._closed = self._idle.is_set(), True
        self._wanted.set()
        self._idle.set()
        if not is_copied:
            problem = self._info.problem or "the copy was not ready in time"
            log.warning("the newest checkpoint was not copied to %s: %s", self._bucket.location, problem)

    def _work(self) -> None:
        pause = self._retry_seconds
        while True:
            self._wanted.wait()
            if self._closed:
                return
            self._wanted.clear()
            try:
                self._copy_all()
            except BucketError as error:
                self._update(problem=str(error))
                log.warning("checkpoints are not copied, and it is tried again in %.0f s: %s", pause, error)
                self._wanted.wait(pause)
                self._wanted.set()
                pause = min(2 * pause, LAST_RETRY_SECONDS)
                continue
            pause = self._retry_seconds
            if not self._wanted.is_set():
                self._idle.set()

    def _copy_all(self) -> None:
        """The newest first: it is the one that is needed."""
        newest, own = 0, self._checkpoints.own()
        for checkpoint in reversed(own):
            try:
                self._bucket.copy(checkpoint)
            except FileNotFoundError:  # pruned meanwhile
                continue
            newest = max(newest, checkpoint.step)
            self._update(step=newest, problem="")
        if newest:
            self._bucket.keep(newest, self._checkpoints.keep, {each.step for each in own})

    def _update(self, *, problem: str, step: int | None = None) -> None:
        self._info = CopyInfo(location=self._bucket.location, step=step or self._info.step, problem=problem)
        self._report(self._info)


class NoCopies:
    """For runs without a bucket."""

    def wake(self) -> None:
        pass

    async def drain(self, stop: asyncio.Event) -> None:
        pass


Copies = Copier | NoCopies
