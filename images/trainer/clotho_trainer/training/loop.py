"""The life of a training run: take a batch, take a step, publish, acknowledge, save; until the last step or a stop."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import structs

from clotho_contract.config import RunConfig
from clotho_contract.history import Evaluation, best_of, summaries
from clotho_contract.termination import Termination
from clotho_trainer.failures import TrainerError
from clotho_trainer.reporting.board import Board
from clotho_trainer.reporting.history import ScoredAnswers
from clotho_trainer.reporting.tracking import Sample, Tracker
from clotho_trainer.training import model_card
from clotho_trainer.training.backend import Backend
from clotho_trainer.training.batch import Batch, prepare
from clotho_trainer.training.checkpoints import SUMMARY, Checkpoints
from clotho_trainer.training.copying import Copies, NoCopies
from clotho_trainer.training.durable import VolumeFullError
from clotho_trainer.training.schedule import learning_rate
from clotho_trainer.training.source import Delivery, Source

log = logging.getLogger(__name__)

_EVALUATION_SECONDS = 10.0

Result = TypeVar("Result")


class TrainingLoop:
    def __init__(
        self,
        config: RunConfig,
        wanted_steps: Callable[[], int],
        backend: Backend,
        source: Source,
        checkpoints: Checkpoints,
        board: Board,
        tracker: Tracker,
        executor: Executor,
    ) -> None:
        self._config = config
        self._wanted_steps = wanted_steps
        self._backend = backend
        self._source = source
        self._checkpoints = checkpoints
        self._board = board
        self._tracker = tracker
        self._executor = executor
        self.copies: Copies = NoCopies()
        self.base_licence = ""  # as the base model's card names it
        self._saved = backend.version
        self._last_step_ended = time.monotonic()
        self._evaluated_at = 0.0
        self._best: Evaluation | None = None
        self._rehearsal: asyncio.Future[None]
        self._show_total()

    @property
    def _total(self) -> int:
        """training.steps, or fewer where the data ends before."""
        steps, last = self._config.training.steps, self._source.last_step
        return steps if last is None else min(steps, last)

    async def run(self, stop: asyncio.Event) -> Termination:
        self._rehearsal = asyncio.ensure_future(self._in_thread(self._backend.rehearse))
        while self._goes_on(stop):
            await self._train_to_total(stop)
            await self._take_evaluations(is_due=not stop.is_set())
            await self._save(stop)
            await self._follow_wanted_steps()  # they may have been raised meanwhile
        self._board.enter("saving")
        await self.copies.drain(stop)
        step, total = self._backend.version, self._total
        if step < total:
            self._board.enter("waiting")
            return Termination(reason="Stopped", message=f"stopped and saved after step {step} of {total}", step=step)
        self._board.enter("finished")
        return Termination(reason="Finished", message=f"all {total} steps are done and saved", step=step)

    def _goes_on(self, stop: asyncio.Event) -> bool:
        return not stop.is_set() and self._backend.version < self._total

    async def _train_to_total(self, stop: asyncio.Event) -> None:
        while self._goes_on(stop):
            self._board.enter(self._source.activity)
            delivery = await self._source.take(stop, self._backend.version)
            if delivery is not None:
                await self._train(delivery)
                await self._take_evaluations()
                if self._is_due(delivery):
                    await self._save(stop)
            await self._follow_wanted_steps()
            self._show_total()  # also data that gave no step changes it

    def _is_due(self, delivery: Delivery) -> bool:
        checkpoint = self._config.training.checkpoint
        return self._backend.version % checkpoint.every_steps == 0 or (checkpoint.every_epoch and delivery.ends_epoch)

    async def _take_evaluations(self, *, is_due: bool = False) -> None:
        """Now and then: they are rare, and steps may be quick."""
        if not is_due and time.monotonic() - self._evaluated_at < _EVALUATION_SECONDS:
            return
        self._evaluated_at = time.monotonic()
        recorder = self._board.recorder
        new = recorder.evaluated(await self._source.evaluations())
        for evaluation in new:
            self._tracker.log_evaluation(evaluation)
        if new:
            self._board.update(evaluations=summaries(recorder.evaluations))
            self._keep_best(new)

    def _keep_best(self, new: Sequence[Evaluation]) -> None:
        rule = self._config.training.checkpoint.keep_best
        known = (*new, *([self._best] if self._best else ()))
        if rule and (best := best_of(known, rule)) is not None:
            self._best = best
            self._checkpoints.best_step = best.step
            self._board.update(best_checkpoint=self._checkpoints.best())

    def _show_total(self) -> None:
        self._board.update(total_steps=self._total, configured_steps=self._config.training.steps)

    async def _train(self, delivery: Delivery) -> None:
        figures: dict[str, float] = {}
        async with delivery.held():
            await self._rehearsed()
            batch = await self._in_thread(lambda: self._read(delivery))
            if batch.trained_tokens:
                figures = await self._step(batch, delivery)
            else:
                log.warning("a batch held nothing to train on")
        await delivery.trained(self._backend.version, figures)

    async def _rehearsed(self) -> None:
        """With the batch there, compiling has the processor for itself: sampling more would take turns with it."""
        if not self._rehearsal.done():
            self._board.enter("compiling")
            with self._backend.step_expected():
                await self._rehearsal
        await self._rehearsal

    def _read(self, delivery: Delivery) -> Batch:
        reading = delivery.read(self._backend.vocabulary)
        for reason in reading.rejected:
            log.warning("dropped a group: %s", reason)
            self._board.dropped_groups.labels("invalid").inc()
        batch = prepare(reading.groups, self._backend.rules, self._backend.version)
        for reason in batch.dropped:
            log.warning("dropped a group: %s", reason)
            self._board.dropped_groups.labels("stale").inc()
        return batch

    async def _step(self, batch: Batch, delivery: Delivery) -> dict[str, float]:
        backend = self._backend
        rate = learning_rate(structs.replace(self._config.training, steps=self._total), backend.version)
        compiles = backend.compiles
        with self._board.stepping("compiling" if compiles else "training"):
            began = time.monotonic()
            figures = batch.figures | await self._in_thread(lambda: backend.step(batch, rate))
            figures |= delivery.figures(figures)
            await backend.engine.publish()
        ended = time.monotonic()
        if compiles:
            log.info("the layers are compiled: their first step took %.0f s", ended - began)
        figures["seconds_training"] = ended - began
        figures["seconds_per_step"] = ended - self._last_step_ended
        figures["tokens_per_second"] = batch.trained_tokens / max(figures["seconds_per_step"], 1e-9)
        figures |= self._board.waiting.take()
        self._last_step_ended = ended
        step = backend.version
        self._board.report(step, figures)
        self._board.recorder.samples.offer(step, await self._answers(batch))
        self._tracker.log(step, figures, self._samples(batch) if self._tracker.wants_samples(step) else [])
        log.info(
            "step %d of %d: reward %.3g, loss %.3g",
            step,
            self._total,
            figures.get("reward/mean", 0.0),
            figures.get("loss", 0.0),
            extra=_rounded(figures),
        )
        return figures

    async def _answers(self, batch: Batch) -> list[ScoredAnswers]:
        names = await self._source.environment_names({g.environment for g in batch.groups if g.environment is not None})
        return [
            ScoredAnswers(
                prompt=group.rows[0].prompt,
                answers=[row.completion for row in group.rows],
                rewards=group.scores,
                advantages=[float(row.advantages.mean()) for row in group.rows],
                environment=names.get(group.environment, "") if group.environment is not None else "",
                version=group.version,
            )
            for group in batch.groups
        ]

    def _samples(self, batch: Batch) -> list[Sample]:
        text = self._backend.decode
        rows = [(row, score) for group in batch.groups for row, score in zip(group.rows, group.scores, strict=True)]
        return [(text(row.prompt.tolist()), text(row.completion.tolist()), score) for row, score in rows[:8]]

    async def _save(self, stop: asyncio.Event) -> None:
        step = self._backend.version
        if step == self._saved:
            return
        await self._in_thread(self._backend.gather)
        self._board.enter("saving")
        try:
            checkpoint = await self._in_thread(lambda: self._checkpoints.write(step, self._fill))
        except VolumeFullError as error:
            raise TrainerError("VolumeFull", self._no_room(step, error)) from error
        except OSError as error:
            problem = f"the checkpoint of step {step} could not be written: {error}"
            raise TrainerError("InternalError", problem) from error
        self._saved = step
        self._board.saved(checkpoint)
        self._board.update(best_checkpoint=self._checkpoints.best())
        log.info("saved %s", checkpoint.path)
        self.copies.wake()
        try:
            await self._source.checkpointed(step)
        except TrainerError as error:
            if not stop.is_set():
                raise
            # The next registration reports it, too.
            log.warning("the checkpoint was not reported to the API server: %s", error.message)

    def _no_room(self, step: int, error: VolumeFullError) -> str:
        return (
            f"the checkpoint of step {step} does not fit: {error}; enlarge the claim or remove what else it holds, "
            f"then `clotho run restart {self._config.run.name}` continues from step {self._saved}"
        )

    def _fill(self, folder: Path) -> None:
        self._backend.save(folder)
        summary = {
            "step": self._backend.version,
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "config": msgspec.to_builtins(self._config),
            "history": msgspec.to_builtins(self._board.progress.history),
            "source": self._source.state(),
        }
        (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
        history = self._board.progress.history
        card = model_card.model_card(self._config, self._backend.version, history, self.base_licence)
        (folder / model_card.FILE).write_text(card)  # in the place of a library's, which is a form to fill in

    async def _follow_wanted_steps(self) -> None:
        """`training.steps` may be raised or lowered while the run goes on; nothing else may."""
        steps = self._wanted_steps()
        if steps == self._config.training.steps:
            return
        log.info("training.steps is now %d, was %d", steps, self._config.training.steps)
        self._config = structs.replace(self._config, training=structs.replace(self._config.training, steps=steps))
        await self._source.reconfigured(self._config, self._backend.version)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in figures.items()}
