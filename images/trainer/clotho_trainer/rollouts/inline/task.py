"""What an inline run trains on: records, rewards, and how rollouts go; from the run's settings or from Python."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clotho_contract.inline import NO_REWARD, Inline
from clotho_trainer.failures import TrainerError
from clotho_trainer.rollouts.inline import entries, records
from clotho_trainer.rollouts.inline.records import Record
from clotho_trainer.rollouts.inline.rewards import EnvironmentReward, GroupFunction, Measure, Reward
from clotho_trainer.rollouts.inline.rollouts import Conduct
from clotho_trainer.rollouts.inline.tools import Tool, methods_of, tools_from


@dataclass(frozen=True)
class Task:
    records: Sequence[Record]
    rewards: Sequence[Reward]
    conduct: Conduct = field(default_factory=Conduct)
    schemas: Sequence[Mapping[str, Any]] = ()  # of the tools, for the chat template

    def __post_init__(self) -> None:
        if not self.rewards:
            raise TrainerError("InvalidConfig", NO_REWARD)


def load(inline: Inline) -> Task:
    """Blocks while modules are imported and the dataset is read."""
    rewards, conduct = rewards_of(inline), conduct_of(inline)
    return make_task(records.read(inline.dataset, inline.instructions), rewards, conduct)


def make_task(dataset: Sequence[Record], rewards: Sequence[Reward], conduct: Conduct) -> Task:
    tools: Sequence[Tool] = conduct.tools
    if conduct.environment is not None:
        probe = _first_instance(conduct.environment)
        tools = methods_of(probe, "inline.tools.environment")
        if hasattr(probe, "get_reward"):
            rewards = [*rewards, EnvironmentReward()]
    if conduct.rollout is not None and not inspect.iscoroutinefunction(conduct.rollout):
        raise TrainerError("InvalidConfig", "inline.tools.rollout must be an `async def` with (record, policy)")
    names = [tool.name for tool in tools]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise TrainerError("InvalidConfig", f"inline.tools: there are several tools called {repeated[0]}")
    return Task(dataset, rewards, conduct, [tool.schema for tool in tools])


def rewards_of(inline: Inline) -> list[Reward]:
    folder = Path(inline.code.path)
    rewards: list[Reward] = []
    if inline.rewards.model:
        function = entries.load(inline.rewards.model, folder, "inline.rewards.model")
        rewards.append(Measure("model", function))
    for measure in inline.rewards.measures:
        function = entries.load(measure.entry, folder, f"inline.rewards.measures, {measure.name}")
        rewards.append(Measure(measure.name, function, measure.weight, measure.kind))
    for extra in inline.rewards.functions:
        function = entries.load(extra.entry, folder, f"inline.rewards.functions, {extra.name}")
        rewards.append(GroupFunction(extra.name, function, extra.weight))
    return rewards


def conduct_of(inline: Inline) -> Conduct:
    folder, tools = Path(inline.code.path), inline.tools
    if tools is None:
        return Conduct()
    if tools.environment:
        factory = entries.load(tools.environment, folder, "inline.tools.environment")
        return Conduct(environment=factory, max_iterations=tools.max_iterations)
    if tools.rollout:
        return Conduct(rollout=entries.load(tools.rollout, folder, "inline.tools.rollout"))
    where = "inline.tools.functions"
    loaded = [tool for entry in tools.functions for tool in tools_from(entries.load(entry, folder, where), where)]
    return Conduct(tools=loaded, max_iterations=tools.max_iterations)


def _first_instance(factory: Any) -> Any:
    try:
        return factory()
    except Exception as error:
        message = f"inline.tools.environment: it cannot be made: {entries.brief(error)}{entries.place(error)}"
        raise TrainerError("InvalidConfig", message) from error
