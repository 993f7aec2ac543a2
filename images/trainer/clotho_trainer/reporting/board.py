"""The trainer's state for `/progress`, `/metrics`, health and readiness, all from one place."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from msgspec import structs
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from clotho_contract.progress import CheckpointInfo, HistorySample, Progress, State
from clotho_trainer.reporting.history import Recorder
from clotho_trainer.reporting.waiting import Waiting

_HISTORY = 10
_STEP_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800)
_HEADLINES = {
    "reward/mean": "reward_mean",
    "loss": "loss",
    "percent_correct": "percent_correct",
    "tokens_per_second": "tokens_per_second",
    "seconds_per_step": "seconds_per_step",
    "waiting_share": "waiting_share",
    "occupancy": "occupancy",
}


class Board:
    def __init__(
        self,
        total_steps: int,
        stall_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        rows: int = 1,
        ranks: int = 1,
    ) -> None:
        """`rows` of an engine, and `ranks` with an engine."""
        self.progress = Progress(state="loading", step=0, total_steps=total_steps)
        self.registry = CollectorRegistry()
        self._waiting_for = "the model to load"
        self.engine_problem: Callable[[], str | None] = lambda: None
        self.on_report: Callable[[int, Mapping[str, float]], None] = lambda step, figures: None
        self.figures: Mapping[str, float] = {}  # of the last step
        self._stall_seconds = stall_seconds
        self._clock = clock
        self.waiting = Waiting(rows, clock, ranks)
        self.recorder = Recorder()
        self._step_began: float | None = None
        self._history_stride = 1
        self._figures = Gauge("clotho_trainer_figure", "Figures of the last step.", ["figure"], registry=self.registry)
        self._step = self._gauge("step", "Optimiser steps taken.")
        self._total = self._gauge("steps", "Optimiser steps of the whole run.")
        self._checkpoint = self._gauge("checkpoint_step", "Step of the newest checkpoint.")
        self._seconds = Histogram(
            "clotho_trainer_step_seconds", "Duration of a step.", buckets=_STEP_SECONDS, registry=self.registry
        )
        self.dropped_groups = Counter(
            "clotho_trainer_dropped_groups", "Groups that could not be trained.", ["reason"], registry=self.registry
        )
        self.sampled_tokens = Counter(
            "clotho_trainer_sampled_tokens", "Tokens sampled for environments.", registry=self.registry
        )
        self._total.set(total_steps)

    def update(self, **changes: object) -> None:
        self.progress = structs.replace(self.progress, **changes)
        self._step.set(self.progress.step)
        self._total.set(self.progress.total_steps)

    def wait_for(self, what: str) -> None:
        self._waiting_for = what

    def enter(self, state: State) -> None:
        self.waiting.enter(is_waiting=state == "waiting")
        self.update(state=state)

    @contextmanager
    def stepping(self, state: State) -> Iterator[None]:
        """Time a step; while it lasts longer than the stall limit, the trainer is not healthy."""
        self.enter(state)
        self._step_began = began = self._clock()
        try:
            yield
        finally:
            self._step_began = None
        self._seconds.observe(self._clock() - began)

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._figures.labels(name).set(value)
        headlines = {field: figures.get(name) for name, field in _HEADLINES.items()}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.update(step=step, policy_version=step, last_step_time=now, **headlines)
        sample = HistorySample(
            step=step,
            reward_mean=figures.get("reward/mean"),
            loss=figures.get("loss"),
            percent_correct=figures.get("percent_correct"),
        )
        self.update(history=self._remember(sample))
        self.figures = figures
        self.recorder.record(step, figures)
        self.on_report(step, figures)

    def saved(self, checkpoint: CheckpointInfo) -> None:
        self.update(checkpoint=checkpoint)
        self._checkpoint.set(checkpoint.step)

    def healthy(self) -> str | None:
        began = self._step_began
        if began is not None and self._clock() - began > self._stall_seconds:
            lasting = self._clock() - began
            return f"step {self.progress.step + 1} has taken {lasting:.0f} s; the limit is {self._stall_seconds:.0f} s"
        return self.engine_problem()

    def ready(self) -> str | None:
        if self.progress.registered and self.progress.serving:
            return self.engine_problem()
        return f"waiting for {self._waiting_for}"

    def _remember(self, sample: HistorySample) -> tuple[HistorySample, ...]:
        kept = [old for old in self.progress.history if old.step < sample.step and old.step % self._history_stride == 0]
        while len(kept) >= _HISTORY:
            self._history_stride *= 2
            kept = [old for old in kept if old.step % self._history_stride == 0]
        return (*kept, sample)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"clotho_trainer_{name}", text, registry=self.registry)
