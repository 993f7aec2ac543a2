"""Passes over the dataset: where the run is, where the data ends, and how each pass went."""

import logging
from collections.abc import Mapping
from typing import Any

from clotho_trainer.rollouts.inline.order import indices

log = logging.getLogger(__name__)

_AVERAGED = {"reward/mean": "epoch/reward_mean", "loss": "epoch/loss"}


class Epochs:
    def __init__(
        self,
        *,
        records: int,
        each: int,
        limit: int,
        seed: int | None,
        step: int = 0,
        position: int = 0,
        running: Mapping[str, list[float]] | None = None,
    ) -> None:
        self.position = position  # records taken since the beginning
        self._records = records
        self._each = each  # records a step
        self._limit = limit  # passes; 0: no limit
        self._seed = seed  # None keeps the dataset's order
        self._step = step
        self._running = dict(running or {})  # figures of the pass so far
        self._averages: dict[str, float] = {}  # of the last whole pass

    @property
    def last_step(self) -> int | None:
        if not self._limit:
            return None
        return self._step + -(-self._left // self._each)

    def next_indices(self) -> list[int]:
        count = min(self._each, self._left) if self._limit else self._each
        return indices(self.position, count, records=self._records, seed=self._seed)

    def advance(self, records: int, step: int, found: Mapping[str, float]) -> None:
        running = self._with(found)
        if self.ends_pass(records):
            self._averages, running = _averages(running), {}
            log.info("pass %d over the dataset is done", self._passes(records), extra=self._averages)
        self._running, self._step, self.position = running, step, self.position + records

    def figures(self, records: int, found: Mapping[str, float]) -> dict[str, float]:
        """Of a step with so many records: `epoch` counts passes, and the averages are those of the last whole one."""
        averages = _averages(self._with(found)) if self.ends_pass(records) else self._averages
        return {"epoch": (self.position + records) / self._records, **averages}

    def state(self) -> dict[str, Any]:
        return {"position": self.position, "running": self._running}

    def ends_pass(self, records: int) -> bool:
        return self._passes(records) > self._passes(0)

    def _with(self, found: Mapping[str, float]) -> dict[str, list[float]]:
        return {name: [*self._running.get(name, ()), *([found[name]] if name in found else ())] for name in _AVERAGED}

    def _passes(self, records: int) -> int:
        return (self.position + records) // self._records

    @property
    def _left(self) -> int:
        return max(self._limit * self._records - self.position, 0)


def _averages(running: Mapping[str, list[float]]) -> dict[str, float]:
    return {_AVERAGED[name]: sum(values) / len(values) for name, values in running.items() if values}
