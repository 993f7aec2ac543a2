"""Groups that the trainer makes itself: prompts from the dataset, samples from its own engine, the user's rewards."""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import numpy as np

from clotho_contract.config import RunConfig
from clotho_contract.history import Evaluation
from clotho_contract.inline import Inline
from clotho_contract.progress import State
from clotho_contract.trajectory import IGNORE_INDEX, NO_LOGPROB, GenerationParams, Override, ScoredGroup
from clotho_trainer.failures import TrainerError
from clotho_trainer.rollouts.inline import task as tasks
from clotho_trainer.rollouts.inline.chat import Chat
from clotho_trainer.rollouts.inline.epochs import Epochs
from clotho_trainer.rollouts.inline.records import Record
from clotho_trainer.rollouts.inline.rewards import Scores, score_group
from clotho_trainer.rollouts.inline.rollouts import PromptTooLongError, Rollouts, SamplingClient, Trajectory
from clotho_trainer.rollouts.inline.task import Task
from clotho_trainer.training.backend import Backend
from clotho_trainer.training.source import Reading

log = logging.getLogger(__name__)

Sampled = tuple[Record, list[Trajectory], Scores]


class InlineSource:
    opening = "the chat template to be checked"
    activity: State = "training"

    def __init__(self, config: RunConfig, inline: Inline, task: Task | None = None) -> None:
        self._config = config
        self._inline = inline
        self._task = task
        self._scoring = ThreadPoolExecutor(1, thread_name_prefix="rewards")  # one at a time: few are thread-safe
        self._rollouts: Rollouts
        self._epochs: Epochs

    @property
    def last_step(self) -> int | None:
        return self._epochs.last_step

    async def prepare(self) -> None:
        if self._task is None:
            self._task = await asyncio.to_thread(tasks.load, self._inline)
        log.info("%d prompts, %d rewards", len(self._task.records), len(self._task.rewards))

    async def open(self, backend: Backend, state: dict[str, Any]) -> None:
        task, inline = self._loaded, self._inline
        chat = Chat(backend.tokenizer, backend.rules.end_tokens, task.schemas, inline.chat_template)
        if task.schemas:
            chat.check_tools(self._config.model.name)
        policy = SamplingClient(
            backend.engine,
            chat,
            temperature=self._config.inference.temperature,
            completion_limit=inline.max_completion_tokens,
            length_limit=backend.rules.max_tokens,
        )
        self._rollouts = Rollouts(policy, chat, task.conduct, backend.decode)
        self._epochs = Epochs(
            records=len(task.records),
            each=self._config.training.batch_size // inline.group_size,
            limit=inline.dataset.epochs,
            seed=self._config.training.seed if inline.dataset.shuffle else None,
            step=backend.version,
            position=int(state.get("position", 0)),
            running=state.get("running"),
        )

    async def take(self, stop: asyncio.Event, step: int) -> "SampledBatch | None":
        sampling = asyncio.create_task(self._sample())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({sampling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return await sampling if sampling.done() else None
        finally:
            sampling.cancel()
            stopping.cancel()

    async def environment_names(self, ids: Collection[int]) -> Mapping[int, str]:
        return {}

    async def evaluations(self) -> Sequence[Evaluation]:
        return ()

    async def checkpointed(self, step: int) -> None:
        """There is no API server to report it to."""

    async def reconfigured(self, config: RunConfig, step: int) -> None:
        self._config = config

    def state(self) -> dict[str, Any]:
        return self._epochs.state()

    @property
    def _loaded(self) -> Task:
        if self._task is None:
            raise RuntimeError("prepare() comes before open()")
        return self._task

    async def _sample(self) -> "SampledBatch":
        began = time.monotonic()
        chosen = [self._loaded.records[index] for index in self._epochs.next_indices()]
        made = await asyncio.gather(*(self._group(record) for record in chosen))
        sampled = [each for each in made if not isinstance(each, str)]
        rejected = [each for each in made if isinstance(each, str)]
        if not sampled:
            raise TrainerError(
                "InvalidConfig", f"inline.dataset: no prompt of a whole batch can be used; {rejected[0]}"
            )
        figures = figures_of(sampled, has_tools=bool(self._loaded.schemas))
        figures["seconds_sampling"] = time.monotonic() - began
        return SampledBatch([_as_group(t, s) for _, t, s in sampled], rejected, figures, self._epochs, len(chosen))

    async def _group(self, record: Record) -> Sampled | str:
        """The reason when the record is left out."""
        try:
            trajectories = await self._rollouts.group(record, self._inline.group_size)
        except PromptTooLongError as error:
            return f"{record.name} of the dataset: {error}"
        outcomes = [trajectory.outcome() for trajectory in trajectories]
        scores = await asyncio.get_running_loop().run_in_executor(
            self._scoring, score_group, self._loaded.rewards, record, outcomes
        )
        return record, trajectories, scores


class SampledBatch:
    def __init__(
        self,
        groups: Sequence[ScoredGroup],
        rejected: Sequence[str],
        figures: Mapping[str, float],
        epochs: Epochs,
        records: int,
    ) -> None:
        self._groups = groups
        self._rejected = rejected
        self._figures = figures
        self._epochs = epochs
        self._records = records
        self._ends_epoch = epochs.ends_pass(records)

    def read(self, vocabulary: int) -> Reading:
        return Reading(self._groups, self._rejected)

    def held(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def figures(self, found: Mapping[str, float]) -> Mapping[str, float]:
        return {**self._figures, **self._epochs.figures(self._records, found)}

    @property
    def ends_epoch(self) -> bool:
        return self._ends_epoch

    async def trained(self, step: int, figures: Mapping[str, float]) -> None:
        self._epochs.advance(self._records, step, figures)


def _as_group(trajectories: Sequence[Trajectory], scores: Scores) -> ScoredGroup:
    versions = [trajectory.version for trajectory in trajectories if trajectory.version is not None]
    return ScoredGroup(
        tokens=[trajectory.prompt + trajectory.tokens for trajectory in trajectories],
        masks=[[IGNORE_INDEX] * len(trajectory.prompt) + trajectory.masks for trajectory in trajectories],
        scores=scores.totals,
        inference_logprobs=[[NO_LOGPROB] * len(t.prompt) + t.logprobs for t in trajectories],
        overrides=[Override(truncated=trajectory.is_truncated) for trajectory in trajectories],
        generation_params=GenerationParams(policy_version=min(versions)),
    )


def figures_of(sampled: Sequence[Sampled], *, has_tools: bool) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name in sampled[0][2].parts:
        values = [value for _, _, scores in sampled for value in scores.parts[name] if value is not None]
        if values:
            figures[f"rewards/{name}/mean"] = float(np.mean(values))
            figures[f"rewards/{name}/std"] = float(np.std(values))
    trajectories = [trajectory for _, group, _ in sampled for trajectory in group]
    calls = sum(trajectory.calls for trajectory in trajectories)
    if has_tools:
        figures["tools/calls_per_rollout"] = calls / len(trajectories)
    if calls:
        figures["tools/failed_share"] = sum(trajectory.failed_calls for trajectory in trajectories) / calls
    return figures
