"""How much of a step the trainer waited for data, and how full the run's inference engines were meanwhile.

Together they name the limit: engines with free rows can serve more environments, full ones cannot.
"""

from collections.abc import Callable

from clotho_contract.policy_updates import LOAD_VALID_SECONDS, Load


def occupancy(engines: list[Load]) -> float:
    """The share of all rows that is in use. More for one engine than it has rows does not fill another."""
    rows = sum(engine.rows for engine in engines)
    if not rows:
        return 1.0  # nothing serves the policy: more environments would only wait with the others
    return sum(min(engine.sequences, engine.rows) for engine in engines) / rows


class Waiting:
    """Requests come and go on the event loop, which the training loop runs on, too: no lock is needed."""

    def __init__(self, rows: int, clock: Callable[[], float], ranks: int = 1) -> None:
        """`ranks`: how many have an engine. Clients spread their requests evenly, so that this one's stands for all."""
        self._rows, self._ranks, self._clock = rows, ranks, clock
        self._in_flight = 0
        self._replicas: dict[str, tuple[float, Load]] = {}  # with the time of each report
        self._is_waiting = False
        self._began = self._last = clock()  # of the step; of the stretch of time that is not counted yet
        self._waited = self._occupied = 0.0

    def enter(self, *, is_waiting: bool) -> None:
        self._count()
        self._is_waiting = is_waiting

    def count_sequences(self, change: int) -> None:
        self._count()
        self._in_flight += change

    def count_replica(self, name: str, load: Load) -> None:
        self._count()
        self._replicas[name] = (self._last, load)

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
            self._occupied += (now - self._last) * occupancy(self._engines())
        self._last = now

    def _engines(self) -> list[Load]:
        """As they were since the last count."""
        own = Load(min(self._in_flight, self._rows) * self._ranks, self._rows * self._ranks)
        return [own, *(load for at, load in self._replicas.values() if self._last - at <= LOAD_VALID_SECONDS)]
