"""What the loop reports of its steps, with stand-ins for the model and for the source of groups."""

import asyncio
import errno
import itertools
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from clotho_contract.config import Endpoints, RunConfig, RunIdentity
from clotho_contract.history import Evaluation
from clotho_contract.progress import State
from clotho_contract.settings import Checkpoint, Model, Training
from clotho_contract.termination import PERMANENT
from clotho_contract.trajectory import GenerationParams, ScoredGroup
from clotho_trainer.failures import TrainerError
from clotho_trainer.reporting.board import Board
from clotho_trainer.training.batch import Batch, Rules
from clotho_trainer.training.checkpoints import Checkpoints, saved_in
from clotho_trainer.training.loop import TrainingLoop
from clotho_trainer.training.source import Reading

CONFIG = RunConfig(
    run=RunIdentity(name="run", namespace="default", id="run-1"),
    endpoints=Endpoints(api_server="http://api", inference="http://inference"),
    model=Model(name="some/model"),
    training=Training(steps=2),
)


class Backend:
    """Compiles with its first step, and notes what `/progress` says meanwhile."""

    version, vocabulary, context, tokenizer = 0, 64, 64, None
    rules = Rules(max_tokens=64)

    def __init__(self, board: Board) -> None:
        self._board = board
        self.states: list[str] = []
        self.engine: Any = SimpleNamespace(publish=self._publish)

    @property
    def compiles(self) -> bool:
        return self.version == 0

    def rehearse(self) -> None: ...

    def step_expected(self) -> AbstractContextManager[None]:
        return nullcontext()

    def step(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        self.states.append(self._board.progress.state)
        self.version += 1
        return {"loss": 0.1, "learning_rate": learning_rate}

    def gather(self) -> None: ...

    def save(self, folder: Path) -> None:
        (folder / "weights").write_text(str(self.version))

    def restore(self, folder: Path, step: int) -> None:
        raise AssertionError("nothing is restored")

    def decode(self, tokens: list[int]) -> str:
        return ""

    async def _publish(self) -> None:
        self.states.append(self._board.progress.state)


class Source:
    """The same two answers for ever; it is its own delivery."""

    opening = "nothing"
    last_step: int | None = None
    activity: State = "waiting"
    ends_epoch = False

    async def prepare(self) -> None: ...

    async def open(self, backend: Any, state: dict[str, Any]) -> None: ...

    async def take(self, stop: asyncio.Event, step: int) -> "Source":
        return self

    def read(self, vocabulary: int) -> Reading:
        return Reading([ScoredGroup(tokens=[[1, 2], [1, 3]], masks=[[-100, 2], [-100, 3]], scores=[0.0, 1.0])])

    def held(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def figures(self, found: Mapping[str, float]) -> Mapping[str, float]:
        return {}

    async def trained(self, step: int, figures: Mapping[str, float]) -> None: ...

    async def environment_names(self, ids: Collection[int]) -> Mapping[int, str]:
        return {7: "letters"}

    async def evaluations(self) -> Sequence[Evaluation]:
        return ()

    async def checkpointed(self, step: int) -> None: ...

    async def reconfigured(self, config: RunConfig, step: int) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}


def loop_of(
    board: Board,
    backend: Backend,
    source: Source,
    folder: Path,
    executor: Executor,
    steps: int = 2,
    config: RunConfig = CONFIG,
    keep: int = 1,
) -> TrainingLoop:
    tracker: Any = SimpleNamespace(log=lambda *_: None, wants_samples=lambda _: False)
    checkpoints = Checkpoints(folder, keep=keep, run=config.run.id)
    return TrainingLoop(config, lambda: steps, backend, source, checkpoints, board, tracker, executor)


async def test_compilation_is_reported_with_its_duration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    board = Board(2, stall_seconds=60)
    backend = Backend(board)
    caplog.set_level(logging.INFO)
    with ThreadPoolExecutor(1) as executor:
        end = await loop_of(board, backend, Source(), tmp_path, executor).run(asyncio.Event())
    assert end.reason == "Finished"
    assert backend.states == ["compiling", "compiling", "training", "training"]
    logged = [message for message in caplog.messages if "compiled" in message]
    assert logged == ["the layers are compiled: their first step took 0 s"]


class RehearsingBackend(Backend):
    """It rehearses until a batch waits for it."""

    compiles = False

    def rehearse(self) -> None:
        waits = itertools.repeat(0.001, 10_000)
        while "sampling stops" not in self.states:
            time.sleep(next(waits))
        self.states.append("rehearsed")

    @contextmanager
    def step_expected(self) -> Iterator[None]:
        self.states.append("sampling stops")
        yield
        self.states.append("sampling may go on")


async def test_the_first_batch_is_taken_during_the_rehearsal_and_trained_after_it(tmp_path: Path) -> None:
    board = Board(2, stall_seconds=60)
    backend = RehearsingBackend(board)
    with ThreadPoolExecutor(1) as executor:
        await loop_of(board, backend, Source(), tmp_path, executor).run(asyncio.Event())
    assert backend.states == ["sampling stops", "rehearsed", "sampling may go on", *["training"] * 4]


async def test_a_rehearsal_that_fails_ends_the_run(tmp_path: Path) -> None:
    def fail() -> None:
        raise TrainerError("InternalError", "it does not compile")

    board = Board(2, stall_seconds=60)
    backend = Backend(board)
    backend.rehearse = fail  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as executor, pytest.raises(TrainerError, match="does not compile"):
        await loop_of(board, backend, Source(), tmp_path, executor).run(asyncio.Event())


class GrowingBackend(Backend):
    """The volume has room for the first checkpoint only."""

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.version > 1:
            raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_checkpoint_that_does_not_fit_ends_the_run_with_what_to_do(tmp_path: Path) -> None:
    config = structs.replace(CONFIG, training=Training(steps=2, checkpoint=Checkpoint(every_steps=1)))
    board = Board(2, stall_seconds=60)
    with ThreadPoolExecutor(1) as executor, pytest.raises(TrainerError) as caught:
        await loop_of(board, GrowingBackend(board), Source(), tmp_path, executor, config=config).run(asyncio.Event())
    assert caught.value.reason in PERMANENT
    assert caught.value.message.startswith("the checkpoint of step 2 does not fit: ")
    assert caught.value.message.endswith("then `clotho run restart run` continues from step 1")


class Passes(Source):
    """A pass over the data ends with every second batch."""

    _taken = 0

    async def take(self, stop: asyncio.Event, step: int) -> "Source":
        self._taken += 1
        self.ends_epoch = self._taken % 2 == 0
        return self


async def test_a_checkpoint_is_written_after_each_epoch(tmp_path: Path) -> None:
    checkpoint = Checkpoint(every_steps=100, every_epoch=True, keep=9)
    config = structs.replace(CONFIG, training=Training(steps=5, checkpoint=checkpoint))
    board = Board(5, stall_seconds=60)
    with ThreadPoolExecutor(1) as executor:
        loop = loop_of(board, Backend(board), Passes(), tmp_path, executor, steps=5, config=config, keep=9)
        await loop.run(asyncio.Event())
    assert sorted(saved.step for saved in saved_in(tmp_path)) == [2, 4, 5]


class ShortData(Source):
    """Two batches, the second of which holds nothing to train on."""

    last_step = 2
    _taken = 0

    def read(self, vocabulary: int) -> Reading:
        self._taken += 1
        return super().read(vocabulary) if self._taken == 1 else Reading([])

    async def trained(self, step: int, figures: Mapping[str, float]) -> None:
        self.last_step = step + 2 - self._taken


async def test_data_that_gives_fewer_steps_makes_the_run_shorter(tmp_path: Path) -> None:
    board = Board(2, stall_seconds=60)
    with ThreadPoolExecutor(1) as executor:
        end = await loop_of(board, Backend(board), ShortData(), tmp_path, executor).run(asyncio.Event())
    assert (end.reason, end.message) == ("Finished", "all 1 steps are done and saved")
    assert (board.progress.step, board.progress.total_steps) == (1, 1)


class WatchingServer(Source):
    """Notes which checkpoint was on the disk whenever the loop reported one."""

    def __init__(self, folder: Path) -> None:
        self._checkpoints = Checkpoints(folder, keep=1, run=CONFIG.run.id)
        self.reported: list[tuple[int, int | None]] = []

    async def checkpointed(self, step: int) -> None:
        newest = self._checkpoints.newest()
        self.reported.append((step, newest.step if newest else None))


async def test_a_checkpoint_is_reported_after_it_is_written(tmp_path: Path) -> None:
    """The API server deletes the rollouts that a checkpoint covers: a report that comes first could lose them."""
    board, source = Board(2, stall_seconds=60), WatchingServer(tmp_path)
    with ThreadPoolExecutor(1) as executor:
        await loop_of(board, Backend(board), source, tmp_path, executor).run(asyncio.Event())
    assert source.reported == [(2, 2)]


class StaleAndInvalid(Source):
    """Every batch has a group of an old policy and one that could not be decoded."""

    def read(self, vocabulary: int) -> Reading:
        fresh = super().read(vocabulary).groups[0]
        stale = structs.replace(fresh, generation_params=GenerationParams(policy_version=-2))
        return Reading([fresh, stale], ["a score is too large"])


async def test_dropped_groups_are_counted_by_reason(tmp_path: Path) -> None:
    board = Board(2, stall_seconds=60)
    backend = Backend(board)
    backend.rules = Rules(max_tokens=64, max_staleness=1)
    with ThreadPoolExecutor(1) as executor:
        await loop_of(board, backend, StaleAndInvalid(), tmp_path, executor).run(asyncio.Event())
    counted = {
        reason: board.registry.get_sample_value("clotho_trainer_dropped_groups_total", {"reason": reason})
        for reason in ("stale", "invalid")
    }
    assert counted == {"stale": 2, "invalid": 2}


async def test_steps_raised_while_the_last_checkpoint_is_written_are_trained(tmp_path: Path) -> None:
    board = Board(2, stall_seconds=60)
    backend, wanted = Backend(board), [2]

    class Raising(Source):
        async def checkpointed(self, step: int) -> None:
            wanted[0] = 4

    with ThreadPoolExecutor(1) as executor:
        loop = loop_of(board, backend, Raising(), tmp_path, executor)
        loop._wanted_steps = lambda: wanted[0]
        end = await loop.run(asyncio.Event())
    assert (end.reason, end.step, board.progress.total_steps) == ("Finished", 4, 4)
    assert board.progress.configured_steps == 4


class Letters(Source):
    def read(self, vocabulary: int) -> Reading:
        return Reading(
            [
                ScoredGroup(
                    tokens=[[1, 2], [1, 3]],
                    masks=[[-100, 2], [-100, 3]],
                    scores=[0.0, 1.0],
                    env_id=7,
                    generation_params=GenerationParams(policy_version=0),
                )
            ]
        )


async def test_a_training_leaves_curves_and_samples(tmp_path: Path) -> None:
    board = Board(2, stall_seconds=60)
    board.recorder.samples.decode = str
    with ThreadPoolExecutor(1) as executor:
        await loop_of(board, Backend(board), Letters(), tmp_path, executor).run(asyncio.Event())
    history = board.recorder.history()
    assert history.series.points("rewardStd") == [(1, 0.5), (2, 0.5)]
    assert {"rewardMean", "loss", "tokensPerSecond", "secondsWaiting", "secondsTraining"} <= set(history.series.figures)
    newest = history.samples[0]
    assert (newest.step, newest.environment, newest.version, newest.prompt) == (2, "letters", 0, "[1]")
    assert [(answer.text, answer.reward) for answer in newest.answers] == [("[2]", 0.0), ("[3]", 1.0)]
    assert newest.answers[0].advantage == pytest.approx(-0.7071, abs=1e-3)


class Evaluated(Source):
    async def evaluations(self) -> Sequence[Evaluation]:
        return [Evaluation(step=1, time="2026-01-01T00:00:00Z", environment="letters", figures={"accuracy": 0.5})]


async def test_evaluations_are_reported_once(tmp_path: Path) -> None:
    board, logged = Board(2, stall_seconds=60), list[Evaluation]()
    tracker: Any = SimpleNamespace(log=lambda *_: None, wants_samples=lambda _: False, log_evaluation=logged.append)
    checkpoints = Checkpoints(tmp_path, keep=1, run=CONFIG.run.id)
    with ThreadPoolExecutor(1) as executor:
        loop = TrainingLoop(CONFIG, lambda: 2, Backend(board), Evaluated(), checkpoints, board, tracker, executor)
        await loop.run(asyncio.Event())
    assert [each.figures for each in logged] == [{"accuracy": 0.5}]
    assert [(each.environment, each.figure, each.best) for each in board.progress.evaluations] == [
        ("letters", "accuracy", 0.5)
    ]
    assert board.recorder.history().evaluations == tuple(logged)


async def test_the_checkpoint_of_the_best_evaluation_is_kept_and_reported(tmp_path: Path) -> None:
    board = Board(3, stall_seconds=60)
    training = Training(steps=3, checkpoint=Checkpoint(every_steps=1, keep=1, keep_best="accuracy"))
    tracker: Any = SimpleNamespace(log=lambda *_: None, wants_samples=lambda _: False, log_evaluation=lambda _: None)
    checkpoints = Checkpoints(tmp_path, keep=1, run=CONFIG.run.id)
    config = structs.replace(CONFIG, training=training)
    with ThreadPoolExecutor(1) as executor:
        loop = TrainingLoop(config, lambda: 3, Backend(board), Evaluated(), checkpoints, board, tracker, executor)
        await loop.run(asyncio.Event())
    assert sorted(saved.step for saved in saved_in(tmp_path)) == [1, 3]
    assert board.progress.best_checkpoint is not None
    assert board.progress.best_checkpoint.step == 1
