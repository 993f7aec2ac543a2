"""Posts how runs end, and that they stall, to a webhook (Slack's, or any that takes `{"text": ...}`).

Best effort, and at most once for each transition: a status is written once, and nothing is sent a second time.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import aiohttp

from clotho.api.names import KIND
from clotho.cluster.background import Background
from clotho.cluster.store import AnyOwner
from clotho.plan.model import STALLED, Event

log = logging.getLogger(__name__)
TIMEOUT_SECONDS: Final = 10.0
LONGEST_QUEUE: Final = 100  # in flight; a webhook that hangs must not fill the memory
_WORDS: Final = {"Failed": "failed", "Completed": "completed", STALLED: "stalled"}
Outcome = Literal["sent", "failed"]


class Notifier:
    """`url_file` empty: nothing is sent. The file is read each time, so that a Secret that was rotated counts at once.

    The URL is a credential: no message has it.
    """

    def __init__(self, url_file: str, on_outcome: Callable[[Outcome], None]) -> None:
        self._file, self._on_outcome = url_file, on_outcome
        self._background = Background()

    def announce(self, about: AnyOwner, event: Event) -> None:
        """Returns at once."""
        if not self._file or about.kind != KIND or event.reason not in _WORDS:
            return
        name = f"{about.metadata.namespace}/{about.metadata.name}"
        if len(self._background) >= LONGEST_QUEUE:
            self._report(name, f"{LONGEST_QUEUE} others are still being sent")
            return
        text = f"Training run {name} {_WORDS[event.reason]}: {event.message}"
        self._background.start(self._post(name, text))

    async def drain(self, seconds: float) -> None:
        await self._background.drain(seconds)

    async def _post(self, name: str, text: str) -> None:
        try:
            url = self._url()
            limit = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.post(url, json={"text": text}, allow_redirects=False) as answer,
            ):
                problem = "" if answer.status < 300 else f"the webhook answered {answer.status}"
        except Exception as error:  # nothing waits for this task; the error's own text may have the URL
            problem = type(error).__name__
        if problem:
            self._report(name, problem)
        else:
            self._on_outcome("sent")

    def _url(self) -> str:
        return Path(self._file).read_text().strip()

    def _report(self, name: str, problem: str) -> None:
        log.warning("notification not sent: %s", problem, extra={"run": name})
        self._on_outcome("failed")
