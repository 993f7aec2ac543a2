"""How much of a step the trainer waited for data, and how full the inference engine was meanwhile.

Together they name the limit: an engine with free rows can serve more environments, a full one cannot.
"""

from collections.abc import Callable


class Waiting:
    """Requests come and go on the event loop, which the training loop runs on, too: no lock is needed."""

    def __init__(self, rows: int, clock: Callable[[], float]) -> None:
        self._rows, self._clock = rows, clock
        self._in_flight = 0
        self._is_waiting = False
        self._began = self._last = clock()  # of the step; of the stretch of time that is not counted yet
        self._waited = self._occupied = 0.0

    def enter(self, *, is_waiting: bool) -> None:
        self._count()
        self._is_waiting = is_waiting

    def count_sequences(self, change: int) -> None:
        self._count()
        self._in_flight += change

    def take(self) -> dict[str, float]:
        """The figures of the step that ends now; without occupancy when it did not wait."""
        self._count()
        seconds = self._last - self._began
        figures = {"waiting_share": self._waited / max(seconds, 1e-9), "seconds_waiting": self._waited}
        if self._waited:
            figures["occupancy"] = self._occupied / self._waited
        self._began, self._waited, self._occupied = self._last, 0.0, 0.0
        return figures

    def _count(self) -> None:
        now = self._clock()
        if self._is_waiting:
            self._waited += now - self._last
            self._occupied += (now - self._last) * min(1.0, self._in_flight / self._rows)
        self._last = now
