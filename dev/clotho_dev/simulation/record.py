"""What is noted of the steps after the warm-up."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from clotho_dev.simulation.engine import Engine, Group

WARM_UP: Final = 2  # steps that do not count


@dataclass
class Record:
    began: float = 0.0
    tokens: int = 0
    waiting: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # seconds, by what for
    ages: list[int] = field(default_factory=list)  # steps between the policy that began a group and the one it trains
    _training: list[float] = field(default_factory=list)  # the busiest rank over the mean, by step
    _served_before: list[int] = field(default_factory=list)
    _row_seconds_before: float = 0.0
    _has_begun: bool = False

    def begin(self, now: float, engines: Sequence[Engine]) -> None:
        self._has_begun, self.began = True, now
        for engine in engines:
            engine.advance(now)
        self._served_before = [engine.served_tokens for engine in engines]
        self._row_seconds_before = sum(engine.row_seconds for engine in engines)

    def waited(self, what: str, seconds: float) -> None:
        if self._has_begun:
            self.waiting[what] += seconds

    def trained(self, groups: Sequence[Group], shares: Sequence[int], step: int) -> None:
        if self._has_begun:
            self.tokens += sum(group.tokens for group in groups)
            self.ages += [step - group.version for group in groups]
            self._training.append(max(shares) * len(shares) / sum(shares))

    def row_seconds(self, engines: Sequence[Engine]) -> float:
        return sum(engine.row_seconds for engine in engines) - self._row_seconds_before

    def busiest(self, ranks: Sequence[Engine]) -> float:
        """Of what was generated and what was trained, the less even."""
        served = [engine.served_tokens - self._served_before[engine.index] for engine in ranks]
        generating = max(served) * len(served) / max(1, sum(served))
        return max(generating, sum(self._training) / len(self._training))
