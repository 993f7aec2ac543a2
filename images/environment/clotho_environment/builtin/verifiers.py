"""`verifiers:<taskset>`: a single-agent environment of Prime Intellect's verifiers (0.4), rewards by its own tasks."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

from pydantic import Field, ValidationError

from clotho_contract.nearest import nearest
from clotho_environment.sdk.conversation import Conversation
from clotho_environment.sdk.environment import Config, Environment, EnvironmentFailedError
from clotho_environment.sdk.group import Group
from clotho_environment.sdk.recorder import Recorder
from clotho_environment.sdk.sampling import SamplingClient

try:
    import verifiers.v1 as vf  # type: ignore[import-untyped]
    from verifiers.v1.utils.loaders import load_environment, taskset_class  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(
        "verifiers is not installed here; use the image environment-verifiers (make images VARIANTS=verifiers), or the "
        "extra environment-verifiers"
    ) from error

from clotho_environment.builtin import verifiers_harness
from clotho_environment.modules import missing_module, modules_beside

TASKSETS: Final = "verifiers.v1.tasksets"  # those that ship with the library; others are packages of their own


class VerifiersConfig(Config):
    taskset: str = Field(description="Installed package with the taskset, such as gsm8k-v1.")
    taskset_config: dict[str, Any] = Field(default_factory=dict, description="The taskset's own settings.")
    harness: str = Field(
        verifiers_harness.ID,
        description="The program that plays; the default chats in this process. Others may need uv and a network.",
    )
    max_turns: int | None = Field(None, ge=1, description="Most turns of one attempt.")


def taskset_problem(taskset: str) -> str:
    """Why there is no such taskset, with those of similar names; empty when there is. Its data is not loaded."""
    try:
        taskset_class(taskset)
    except Exception as error:
        module = taskset.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
        if not missing_module(module, error.__cause__):
            return f"taskset {taskset} cannot be imported: {type(error).__name__}: {error.__cause__ or error}"
        known = (*modules_beside(f"{TASKSETS}."), *modules_beside(module))
        names = [name.removeprefix(f"{TASKSETS}.").replace("_", "-") for name in known]
        return f"verifiers has no taskset {taskset}{nearest(taskset, names, most=1)}; its package must be in the image"
    return ""


class Verifiers(Environment[VerifiersConfig, Any]):
    """A taskset of verifiers; the score is the weighted sum of its rewards."""

    name = "verifiers"

    async def setup(self) -> None:
        for noisy in ("httpx", "verifiers", "aiohttp.access"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._stack = AsyncExitStack()
        self._recorder: Recorder | None = None
        self._starting = asyncio.Lock()
        agent = {
            "harness": {"id": self.config.harness},
            "runtime": {"type": "subprocess"},
            "max_turns": self.config.max_turns,
        }
        try:
            self._env = load_environment(
                vf.SingleAgentEnvConfig(taskset={"id": self.config.taskset, **self.config.taskset_config}, agent=agent)
            )
        except ModuleNotFoundError as error:
            raise EnvironmentFailedError(f"verifiers has no taskset {self.config.taskset}: {error}") from error
        except (ValidationError, TypeError) as error:
            raise EnvironmentFailedError(f"verifiers refuses {self.config.taskset}: {error}") from error
        await self._stack.enter_async_context(self._env.serving())

    async def close(self) -> None:
        await self._stack.aclose()

    def items(self) -> Iterator[Any]:
        yield from self._env.taskset

    async def rollout(self, item: Any, client: SamplingClient) -> Group:
        recorder = await self._record(client)
        played = await asyncio.gather(*(self._play(item, recorder) for _ in range(self.config.group_size)))
        return Group([conversation for conversation, _ in played], [reward for _, reward in played])

    async def _play(self, task: Any, recorder: Recorder) -> tuple[Conversation, float]:
        context = vf.ModelContext(
            model="policy",
            client=vf.EvalClientConfig(base_url=recorder.base_url, api_key_var="CLOTHO_NO_KEY_NEEDED"),
            sampling=self._sampling(),
        )
        episode = await self._env.run_episode(task, context)
        conversations = [recorder.take(trace.id) for trace in episode.traces]
        problems = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if problems:
            raise RuntimeError(f"{problems[0].type}: {problems[0].message}")
        return conversations[0], episode.traces[0].reward

    def _sampling(self) -> Any:
        return vf.types.SamplingConfig(temperature=self.config.temperature, max_tokens=self.config.max_tokens)

    async def _record(self, client: SamplingClient) -> Recorder:
        async with self._starting:
            if self._recorder is None:
                self._recorder = await self._stack.enter_async_context(Recorder(client).listening())
            return self._recorder
