"""`reasoning-gym:<task>`: any of reasoning-gym's procedurally generated tasks, scored by its own verifier."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pydantic import Field, field_validator

from clotho_contract.entries import task_problem
from clotho_environment.sdk.completion import Message
from clotho_environment.sdk.environment import Config, Environment
from clotho_environment.sdk.group import Group
from clotho_environment.sdk.sampling import SamplingClient

with warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)  # from a dependency, on its first import
    try:
        import reasoning_gym  # type: ignore[import-untyped]
        from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]
        from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            "reasoning-gym is not installed here; use Clotho's image, or the extra environment-reasoning-gym"
        ) from error

TASKS = frozenset[str](DATASETS)
CHUNK = 256  # items made at once, off the event loop


class ReasoningGymConfig(Config):
    task: str = Field(description="Name of the task, such as leg_counting.")
    task_config: dict[str, Any] = Field(default_factory=dict, description="The task's own settings (difficulty, ...).")
    system_prompt: str = Field(SYSTEM_PROMPTS["default"], description="The first message; empty for none.")
    whole_text_is_answer: bool = Field(
        False, description="Score the whole reply instead of what stands between <answer> and </answer>."
    )
    evaluation_size: int = Field(32, ge=1, description="Items that evaluations use; training never sees them.")

    @field_validator("task")
    @classmethod
    def _task_exists(cls, task: str) -> str:
        if problem := task_problem(task, TASKS):
            raise ValueError(problem)
        return task


class ReasoningGym(Environment[ReasoningGymConfig, dict[str, Any]]):
    """A task of reasoning-gym; its own verifier scores the answer."""

    name = "reasoning-gym"

    async def setup(self) -> None:
        """Makes the held-out items, and fails early where `task_config` does not fit the task."""
        self._scorer, self._held_out = await asyncio.to_thread(self._make, 0, self.config.evaluation_size)

    async def items(self) -> AsyncIterator[dict[str, Any]]:
        seed = self.random.randrange(1, 2**31)  # 0 is the held-out set's
        _, entries = await asyncio.to_thread(self._make, seed, CHUNK)
        for entry in entries:
            yield entry

    async def rollout(self, item: dict[str, Any], client: SamplingClient) -> Group:
        messages = self._messages(item)
        completions = await client.chat(messages)
        return Group(
            completions,
            [self.score(item, completion.text) for completion in completions],
            messages=[[*messages, completion.message] for completion in completions],
        )

    async def evaluate(self, client: SamplingClient) -> Mapping[str, float]:
        async def attempt(entry: dict[str, Any]) -> float:
            (completion,) = await client.chat(self._messages(entry), n=1)
            return self.score(entry, completion.text)

        scores = await asyncio.gather(*map(attempt, self._held_out))
        return {
            "score_mean": sum(scores) / len(scores),
            "percent_correct": 100 * sum(score >= 1 for score in scores) / len(scores),
        }

    def score(self, entry: dict[str, Any], text: str) -> float:
        answer = text.strip() if self.config.whole_text_is_answer else extract_answer(text)
        return float(self._scorer.score_answer(answer, entry))

    def _messages(self, entry: dict[str, Any]) -> list[Message]:
        question = {"role": "user", "content": entry["question"]}
        prompt = self.config.system_prompt
        return [{"role": "system", "content": prompt}, question] if prompt else [question]

    def _make(self, seed: int, size: int) -> tuple[Any, list[dict[str, Any]]]:
        dataset = reasoning_gym.create_dataset(self.config.task, **self.config.task_config, seed=seed, size=size)
        return dataset, list(dataset)
