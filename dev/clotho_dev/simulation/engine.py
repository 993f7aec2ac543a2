"""An inference engine that decodes its rows together: all advance at the same pace, which depends on their number."""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from clotho_dev.simulation.inputs import Inputs

_EXACT = 1e-6  # tokens


@dataclass(slots=True, eq=False)
class Group:
    number: int
    lengths: Sequence[int]
    version: int  # of the policy that began it
    tokens: int  # of all its answers
    unfinished: int = 0  # answers; they may be on several engines


@dataclass(slots=True, eq=False)
class Engine:
    """The caller keeps the time: `advance` first, then the change.

    Prefill and HTTP are debts of time that are paid before the rows advance.
    """

    inputs: Inputs
    paces: Sequence[float]  # seconds a token by number of rows
    index: int = 0
    version: int = 0
    in_flight: int = 0  # sequences, waiting ones included
    row_seconds: float = 0.0
    served_tokens: int = 0
    is_paused: bool = False
    order: int = 0  # of the last change: what was foreseen before it does not hold
    _now: float = 0.0
    _position: float = 0.0  # tokens that a row which was always there would have
    _debt: float = 0.0
    _newest: Group | None = None
    _running: list[tuple[float, int, int, Group]] = field(default_factory=list)
    _waiting: deque[tuple[int, Group]] = field(default_factory=deque)

    def advance(self, now: float) -> None:
        passed, self._now = now - self._now, now
        self.row_seconds += passed * len(self._running)
        if self.is_paused or not self._running:
            return
        paid = min(self._debt, passed)
        self._debt -= paid
        self._position += (passed - paid) / self.paces[len(self._running)]

    def add(self, group: Group, lengths: Sequence[int]) -> None:
        """A request for some answers of a group. Requests of one group come together: its prompt is read once."""
        http = self.inputs.http
        if self._newest is not group:
            self._newest = group
            self._debt += self.inputs.work.prompt_tokens / self.inputs.prefill.tokens_per_second
        self._debt += http.seconds_per_request + len(lengths) * http.seconds_per_sequence
        group.unfinished += len(lengths)
        self.in_flight += len(lengths)
        self._waiting.extend((length, group) for length in lengths)
        self._admit()

    def finished(self) -> list[Group]:
        """Groups whose last sequence has just ended."""
        done = []
        while self._running and self._running[0][0] <= self._position + _EXACT:
            _, _, length, group = heapq.heappop(self._running)
            self.in_flight -= 1
            self.served_tokens += length
            group.unfinished -= 1
            if not group.unfinished:
                done.append(group)
        self._admit()
        return done

    def next_change(self) -> float | None:
        if self.is_paused or not self._running:
            return None
        left = max(0.0, self._running[0][0] - self._position)
        return self._now + self._debt + left * self.paces[len(self._running)]

    def _admit(self) -> None:
        launch = self.inputs.decode.tokens_per_launch
        while self._waiting and len(self._running) < self.inputs.work.max_rows:
            length, group = self._waiting.popleft()
            self.order += 1
            end = math.ceil((self._position + length - _EXACT) / launch) * launch
            heapq.heappush(self._running, (end, self.order, length, group))
