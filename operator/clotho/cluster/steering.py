"""Sends a changed number of steps to running trainers, in the background: no reconcile waits for a trainer."""

import logging
import time
from collections.abc import Callable
from typing import Final

from clotho.cluster.background import Background
from clotho.cluster.cache import Key
from clotho.cluster.pod_http import ProbeFailed, http_put
from clotho.plan.model import SetSteps
from clotho_contract import steering
from clotho_contract.names import TRAINER_STATUS_PORT

log = logging.getLogger(__name__)
RETRY_SECONDS: Final = 10.0


class Steering:
    """`on_sent(key)` is called when a trainer has accepted its new number: its next report shows it."""

    def __init__(
        self, token: Callable[[Key], str | None], timeout_seconds: float, on_sent: Callable[[Key], None]
    ) -> None:
        self._token, self._timeout, self._on_sent = token, timeout_seconds, on_sent
        self._tried: dict[Key, tuple[SetSteps, float]] = {}
        self._background = Background()

    def send(self, key: Key, change: SetSteps) -> None:
        """Planned again with every reconcile until the trainer reports it, and sent again after a pause."""
        tried, at = self._tried.get(key, (None, 0.0))
        if tried == change and time.monotonic() - at < RETRY_SECONDS:
            return
        self._tried[key] = (change, time.monotonic())
        self._background.start(self._send(key, change))

    def forget(self, key: Key) -> None:
        self._tried.pop(key, None)

    async def drain(self, seconds: float) -> None:
        await self._background.drain(seconds)

    async def _send(self, key: Key, change: SetSteps) -> None:
        body = steering.encode(change.steps)
        try:
            await http_put(
                change.address, TRAINER_STATUS_PORT, steering.STEPS_PATH, self._token(key), body, self._timeout
            )
        except ProbeFailed as failure:
            log.warning(
                "the trainer did not accept training.steps %d: %s", change.steps, failure, extra={"run": str(key)}
            )
            return
        log.info("the trainer accepted training.steps %d", change.steps, extra={"run": str(key)})
        self._on_sent(key)
