"""Scores of completions: the user's functions, called with the arguments they declare, their results checked."""

import inspect
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from clotho_trainer.failures import TrainerError
from clotho_trainer.rollouts.inline.entries import brief, place
from clotho_trainer.rollouts.inline.records import Message, Record

Kind = Literal["score", "passFail"]
Value = float | None
"""None where a reward does not apply to a completion."""


@dataclass(frozen=True)
class Outcome:
    """What the rewards see of one rollout."""

    output: str  # the policy's last turn
    messages: tuple[Message, ...] = ()  # everything after the prompt, tool results included
    environment: Any = None  # the rollout's own, where the tools have one
    columns: Mapping[str, Any] = field(default_factory=dict)  # what a custom rollout adds


class Reward(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    def score(self, record: Record, outcomes: Sequence[Outcome]) -> list[Value]:
        """One value for each outcome; raises TrainerError for a function that does not keep to that."""


@dataclass(frozen=True)
class Scores:
    totals: list[float]
    parts: dict[str, list[Value]]


def score_group(rewards: Sequence[Reward], record: Record, outcomes: Sequence[Outcome]) -> Scores:
    parts = {reward.name: reward.score(record, outcomes) for reward in rewards}
    weights = {reward.name: reward.weight for reward in rewards}
    totals = [
        math.fsum(weights[name] * value for name, values in parts.items() if (value := values[index]) is not None)
        for index in range(len(outcomes))
    ]
    return Scores(totals, parts)


@dataclass(frozen=True)
class Measure:
    """`function(output, expected)`, with `record`, `messages`, `environment` or columns where it names them."""

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    kind: Kind = "score"

    def __post_init__(self) -> None:
        _check_callable(self.name, self.function)

    def score(self, record: Record, outcomes: Sequence[Outcome]) -> list[Value]:
        return [self._checked(self._call(record, outcome), record) for outcome in outcomes]

    def _call(self, record: Record, outcome: Outcome) -> Any:
        offered = {
            "record": dict(record.fields),
            "prompt": record.prompt,
            "messages": list(outcome.messages),
            "environment": outcome.environment,
            **outcome.columns,
        }
        positional = (outcome.output, record.expected)[: _positional(self.function, offered)]
        return _guarded(self.name, record, lambda: self.function(*positional, **_wanted(self.function, offered)))

    def _checked(self, value: Any, record: Record) -> float:
        if self.kind == "passFail" and value not in (True, False, 0, 1):
            raise _broken(self.name, record, f"returned {value!r}; a pass/fail measure returns true or false")
        return _number(self.name, record, value)


@dataclass(frozen=True)
class GroupFunction:
    """`function(prompts=, completions=, **columns)`, as in TRL: one value for each completion, or None."""

    name: str
    function: Callable[..., Any]
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_callable(self.name, self.function)

    def score(self, record: Record, outcomes: Sequence[Outcome]) -> list[Value]:
        size = len(outcomes)
        columns = {name: [value] * size for name, value in record.fields.items()} | {
            "expected": [record.expected] * size,
            "environments": [outcome.environment for outcome in outcomes],
            "prompts": [record.prompt] * size,
            "completions": [o.output if record.is_text else list(o.messages) for o in outcomes],
        }
        for name in {name for outcome in outcomes for name in outcome.columns}:
            columns[name] = [outcome.columns.get(name) for outcome in outcomes]
        values = _guarded(self.name, record, lambda: self.function(**_wanted(self.function, columns)))
        if hasattr(values, "tolist"):  # an array or a tensor
            values = values.tolist()
        if not isinstance(values, list | tuple) or len(values) != size:
            shape = f"{len(values)} values" if isinstance(values, list | tuple) else repr(values)
            raise _broken(self.name, record, f"returned {shape} for {size} completions")
        return [None if value is None else _number(self.name, record, value) for value in values]


@dataclass(frozen=True)
class EnvironmentReward:
    """`get_reward()` of the rollout's own environment."""

    name: str = "environment"
    weight: float = 1.0

    def score(self, record: Record, outcomes: Sequence[Outcome]) -> list[Value]:
        return [
            _number(self.name, record, _guarded(self.name, record, outcome.environment.get_reward))
            for outcome in outcomes
        ]


def _check_callable(name: str, function: Any) -> None:
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise TrainerError("InvalidConfig", f"inline.rewards: {name} is {function!r}, not a plain function")


def _guarded(name: str, record: Record, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        message = f"the reward {name} raised {brief(error)}{place(error)} for {record.name} of the dataset"
        raise TrainerError("EnvironmentFailed", message) from error


def _broken(name: str, record: Record, problem: str) -> TrainerError:
    return TrainerError("InvalidConfig", f"the reward {name} {problem}, for {record.name} of the dataset")


def _number(name: str, record: Record, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _broken(name, record, f"returned {value!r}, which is not a number") from None
    if not math.isfinite(number):
        raise _broken(name, record, f"returned {number}")
    return number


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions do not say
        return []


def _positional(function: Callable[..., Any], offered: Container[str]) -> int:
    """How many of output and expected it takes: a function that ignores the expected answer may leave it out."""
    parameters = _parameters(function)
    if not parameters or any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return 2
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds and parameter.name not in offered for parameter in parameters[:2])


def _wanted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    parameters = _parameters(function)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return dict(offered)
    named = {parameter.name for parameter in parameters}
    return {name: value for name, value in offered.items() if name in named}
