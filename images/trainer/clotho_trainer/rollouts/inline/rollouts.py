"""Rollouts: the policy answers, calls tools and reads their results. Tokens are marked as sampled or observed."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clotho_contract.trajectory import IGNORE_INDEX, NO_LOGPROB
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import Completion, Engine, EngineBusyError, Request, Sampling
from clotho_trainer.model import tool_calls
from clotho_trainer.model.tool_calls import Malformed, ToolCall
from clotho_trainer.rollouts.inline.chat import Chat
from clotho_trainer.rollouts.inline.entries import brief, place
from clotho_trainer.rollouts.inline.records import Message, Record
from clotho_trainer.rollouts.inline.rewards import Outcome
from clotho_trainer.rollouts.inline.tools import Tool, failure_text, methods_of

_ATTEMPTS, _PAUSE_SECONDS = 10, 0.5


class PromptTooLongError(ValueError):
    """The record is left out."""


@dataclass(eq=False)
class Trajectory:
    """A rollout in the making: `tokens` are everything after the prompt."""

    prompt: list[int]
    limit: int  # most tokens after the prompt
    tokens: list[int] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    output: str = ""  # the policy's last turn
    version: int | None = None  # the oldest policy that wrote any of it
    is_truncated: bool = False
    environment: Any = None
    columns: dict[str, Any] = field(default_factory=dict)  # handed to the rewards
    calls: int = 0
    failed_calls: int = 0

    @property
    def room(self) -> int:
        return self.limit - len(self.tokens)

    def add_sampled(self, completion: Completion) -> None:
        tokens = list(completion.tokens)
        known = len(completion.logprobs) == len(tokens)
        self.tokens += tokens
        self.masks += tokens
        self.logprobs += completion.logprobs if known else [NO_LOGPROB] * len(tokens)
        self.version = completion.version if self.version is None else min(self.version, completion.version)
        self.output = completion.text
        self.is_truncated = completion.finish_reason == "length"
        self.messages.append({"role": "assistant", "content": completion.text})

    def add_observed(self, tokens: Sequence[int]) -> bool:
        """False when there is no room for them and one token more."""
        if len(tokens) >= self.room:
            self.is_truncated = True
            return False
        self.tokens += tokens
        self.masks += [IGNORE_INDEX] * len(tokens)
        self.logprobs += [NO_LOGPROB] * len(tokens)
        return True

    def outcome(self) -> Outcome:
        return Outcome(self.output, tuple(self.messages), self.environment, self.columns)


class SamplingClient:
    """The policy as rollouts see it; custom rollout functions get one."""

    def __init__(
        self, engine: Engine, chat: Chat, *, temperature: float, completion_limit: int, length_limit: int
    ) -> None:
        self._engine = engine
        self._chat = chat
        self._temperature = temperature
        self._completion_limit = completion_limit
        self._length_limit = length_limit

    def begin(self, messages: Sequence[Message]) -> Trajectory:
        prompt = self._chat.prompt(messages)
        limit = min(self._completion_limit, self._length_limit - len(prompt))
        if limit < 1:
            raise PromptTooLongError(f"its prompt has {len(prompt)} tokens; the limit is {self._length_limit}")
        return Trajectory(prompt, limit)

    async def sample(self, trajectory: Trajectory, *, max_tokens: int | None = None, stop: Sequence[str] = ()) -> str:
        """The policy's next turn, added to the trajectory."""
        if trajectory.room < 1:
            raise ValueError(f"the trajectory is full: it has all its {trajectory.limit} tokens")
        limit = min(max_tokens or trajectory.room, trajectory.room)
        prompt = (*trajectory.prompt, *trajectory.tokens)
        (completion,) = await self._generate(Request(prompt, self._sampling(limit, stop)))
        trajectory.add_sampled(completion)
        return completion.text

    def observe(self, trajectory: Trajectory, text: str) -> bool:
        """Add what the world answered; it is not trained on. False when it does not fit any more."""
        trajectory.messages.append({"role": "tool", "content": text})
        return trajectory.add_observed(self._chat.tokens(text))

    async def sample_together(self, trajectories: Sequence[Trajectory]) -> None:
        """The first turn of a group: the same prompt is read once."""
        same = {tuple(trajectory.prompt) for trajectory in trajectories}
        if len(same) > 1:
            await asyncio.gather(*(self.sample(trajectory) for trajectory in trajectories))
            return
        request = Request(next(iter(same)), self._sampling(trajectories[0].room), len(trajectories))
        for trajectory, completion in zip(trajectories, await self._generate(request), strict=True):
            trajectory.add_sampled(completion)

    def _sampling(self, limit: int, stop: Sequence[str] = ()) -> Sampling:
        return Sampling(max_tokens=limit, temperature=self._temperature, stop=tuple(stop))

    async def _generate(self, request: Request) -> list[Completion]:
        for _ in range(_ATTEMPTS):
            try:
                return await self._engine.generate(request)
            except EngineBusyError as error:
                problem = str(error)
                if self._engine.problem():
                    break
            await asyncio.sleep(_PAUSE_SECONDS)
        raise TrainerError("InternalError", f"the policy could not be sampled: {problem}")


@dataclass(frozen=True)
class Conduct:
    """How rollouts go: with these tools, with an environment of their own, by the user's function, or plainly."""

    tools: Sequence[Tool] = ()
    environment: Callable[[], Any] | None = None
    rollout: Callable[..., Any] | None = None
    max_iterations: int = 5


class Rollouts:
    def __init__(
        self, policy: SamplingClient, chat: Chat, conduct: Conduct, decode: Callable[[list[int]], str]
    ) -> None:
        self._policy = policy
        self._chat = chat
        self._conduct = conduct
        self._decode = decode  # with special tokens: some models write calls with them

    async def group(self, record: Record, size: int) -> list[Trajectory]:
        if self._conduct.rollout is not None:
            return list(await asyncio.gather(*(self._custom(record) for _ in range(size))))
        trajectories = list(await asyncio.gather(*(self._begin(record) for _ in range(size))))
        await self._policy.sample_together(trajectories)
        if self._conduct.tools or self._conduct.environment:
            await asyncio.gather(*(self._use_tools(trajectory) for trajectory in trajectories))
        return trajectories

    async def _begin(self, record: Record) -> Trajectory:
        if self._conduct.environment is None:
            return self._policy.begin(record.messages)
        try:
            environment, observation = await asyncio.to_thread(_fresh, self._conduct.environment, record.fields)
        except Exception as error:
            message = f"inline.tools.environment raised {brief(error)}{place(error)} for {record.name} of the dataset"
            raise TrainerError("EnvironmentFailed", message) from error
        trajectory = self._policy.begin(_with_observation(record.messages, observation))
        trajectory.environment = environment
        return trajectory

    async def _custom(self, record: Record) -> Trajectory:
        assert self._conduct.rollout is not None  # noqa: S101 - for the type checker
        try:
            trajectory = await self._conduct.rollout(record, self._policy)
        except (PromptTooLongError, TrainerError):
            raise
        except Exception as error:
            message = f"inline.tools.rollout raised {brief(error)}{place(error)} for {record.name} of the dataset"
            raise TrainerError("EnvironmentFailed", message) from error
        if not isinstance(trajectory, Trajectory) or trajectory.version is None:
            raise TrainerError(
                "InvalidConfig",
                f"inline.tools.rollout returned {type(trajectory).__name__} for {record.name}; it must return the "
                "trajectory that policy.begin() gave, with something sampled",
            )
        return trajectory

    async def _use_tools(self, trajectory: Trajectory) -> None:
        given = self._conduct.tools
        if trajectory.environment is not None:
            given = methods_of(trajectory.environment, "inline.tools.environment")
        tools = {tool.name: tool for tool in given}
        for _ in range(self._conduct.max_iterations):
            calls = [] if trajectory.is_truncated else self._calls(trajectory)
            if not calls:
                return
            results = [await self._answer(call, tools, trajectory) for call in calls]
            names = [call.name if isinstance(call, ToolCall) else "tool" for call in calls]
            trajectory.messages[-1] = _call_message(trajectory.output, calls)
            trajectory.messages += [
                {"role": "tool", "name": name, "content": result} for name, result in zip(names, results, strict=True)
            ]
            if not trajectory.add_observed(self._chat.after_call(names, results)):
                return
            await self._policy.sample(trajectory)

    def _calls(self, trajectory: Trajectory) -> list[ToolCall | Malformed]:
        since = max((i for i, mask in enumerate(trajectory.masks) if mask == IGNORE_INDEX), default=-1) + 1
        return tool_calls.parse(self._decode(trajectory.tokens[since:-1]))  # the last token ends the turn

    async def _answer(self, call: ToolCall | Malformed, tools: Mapping[str, Tool], trajectory: Trajectory) -> str:
        trajectory.calls += 1
        try:
            if isinstance(call, Malformed):
                raise ValueError(call.problem)
            if call.name not in tools:
                raise LookupError(f"there is no tool {call.name}; there are {', '.join(tools)}")
            return await tools[call.name].call(call.arguments)
        except Exception as error:  # the policy learns from its mistakes, and from those of its tools
            trajectory.failed_calls += 1
            return failure_text(error)


def _fresh(factory: Callable[[], Any], fields: Mapping[str, Any]) -> tuple[Any, str]:
    environment = factory()
    reset = getattr(environment, "reset", None)
    if reset is None:
        return environment, ""
    parameters = inspect.signature(reset).parameters.values()
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    named = {parameter.name for parameter in parameters}
    observation = reset(**{name: value for name, value in fields.items() if takes_all or name in named})
    return environment, "" if observation is None else str(observation)


def _with_observation(messages: Sequence[Message], observation: str) -> list[Message]:
    last = messages[-1]
    return [*messages[:-1], {**last, "content": f"{last['content']}{observation}"}]


def _call_message(text: str, calls: Sequence[ToolCall | Malformed]) -> Message:
    made = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
        if isinstance(call, ToolCall)
    ]
    return {"role": "assistant", "content": tool_calls.content_of(text)} | ({"tool_calls": made} if made else {})
