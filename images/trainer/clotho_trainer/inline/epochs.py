"""Passes over the dataset: where the run is, where the data ends, and how each pass went."""

import logging
from collections.abc import Mapping

from clotho_trainer.inline.order import indices

log = logging.getLogger(__name__)

_AVERAGED = {"reward/mean": "epoch/reward_mean", "loss": "epoch/loss"}


class Epochs:
    def __init__(
        self, *, records: int, each: int, limit: int, seed: int | None, position: int = 0, step: int = 0
    ) -> None:
        self.position = position  # records taken since the beginning
        self._records = records
        self._each = each  # records a step
        self._limit = limit  # passes; 0: no limit
        self._seed = seed  # None keeps the dataset's order
        self._step = step
        self._running: dict[str, list[float]] = {name: [] for name in _AVERAGED}
        self._averages: dict[str, float] = {}

    @property
    def last_step(self) -> int | None:
        if not self._limit:
            return None
        return self._step + -(-self._left // self._each)

    def next_indices(self) -> list[int]:
        count = min(self._each, self._left) if self._limit else self._each
        return indices(self.position, count, records=self._records, seed=self._seed)

    def advance(self, records: int, step: int, figures: Mapping[str, float]) -> None:
        before, self.position = self.position // self._records, self.position + records
        self._step = step
        for name, values in self._running.items():
            values.extend([figures[name]] if name in figures else [])
        epoch = self.position // self._records
        if epoch > before:
            self._averages = {_AVERAGED[n]: sum(v) / len(v) for n, v in self._running.items() if v}
            self._running = {name: [] for name in _AVERAGED}
            log.info("pass %d over the dataset is done", epoch, extra=self._averages)

    def figures(self) -> dict[str, float]:
        """`epoch` counts passes; the averages are those of the last whole one."""
        return {"epoch": self.position / self._records, **self._averages}

    @property
    def _left(self) -> int:
        return max(self._limit * self._records - self.position, 0)
