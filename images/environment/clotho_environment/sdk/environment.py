"""The class that authors write: tasks, how the policy attempts them, and what an attempt is worth."""

import random
import reprlib
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clotho_contract.nearest import nearest
from clotho_contract.trajectory import DEFAULT_GROUP_SIZE
from clotho_environment.sdk.group import Group
from clotho_environment.sdk.sampling import Defaults, SamplingClient

DEFAULT_CONCURRENCY: Final = 16
MOST_CONCURRENT: Final = 4096


class Config(BaseModel):
    """Fields every environment has; authors subclass it and add their own, typed and described."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group_size: int = Field(
        DEFAULT_GROUP_SIZE, ge=1, description="Attempts at each item; the trainer's batch is a multiple of it."
    )
    max_tokens: int = Field(512, ge=1, description="Longest answer of the policy, in tokens.")
    temperature: float | None = Field(
        None, gt=0, le=10, description="Of sampling; what the run's inference uses when absent."
    )
    concurrency: int = Field(
        DEFAULT_CONCURRENCY,
        ge=1,
        le=MOST_CONCURRENT,
        description="Rollouts in flight at once; in a run, as many as a batch has groups if this is absent.",
    )
    rollout_timeout_seconds: float = Field(3600, gt=0, description="A rollout that takes longer is given up.")
    evaluate_every_steps: int = Field(25, ge=0, description="Steps between evaluations; 0 turns them off.")
    skip_equal_scores: bool = Field(
        False, description="Do not send groups whose scores are all the same: there is nothing to prefer in them."
    )
    max_consecutive_failures: int = Field(
        32, ge=1, description="So many failed rollouts in a row end the environment with a clear error."
    )
    seed: int | None = Field(None, description="Makes `self.random` repeatable; replicas differ when absent.")

    @property
    def sampling(self) -> Defaults:
        """Sampling parameters where a call does not override them."""
        return Defaults(n=self.group_size, max_tokens=self.max_tokens, temperature=self.temperature)


class InvalidConfigError(ValueError):
    """The environment's config is wrong; the message has one line for each field."""


class EnvironmentFailedError(Exception):
    """The environment does not work and trying again cannot help; the message names the cause."""


ConfigT = TypeVar("ConfigT", bound=Config)
ItemT = TypeVar("ItemT")


class Environment(Generic[ConfigT, ItemT]):
    """Subclass as `class Mine(Environment[MyConfig, MyItem])`; write `items` and `rollout`, the rest is optional."""

    name: ClassVar[str] = ""
    config_class: ClassVar[type[Config]] = Config

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__dict__.get("name") or cls.__name__.lower()
        for base in getattr(cls, "__orig_bases__", ()):
            if isinstance(get_origin(base), type) and issubclass(get_origin(base), Environment):
                first = get_args(base)[0]
                if isinstance(first, type) and issubclass(first, Config):
                    cls.config_class = first

    def __init__(self, config: ConfigT) -> None:
        self.config = config
        self.random = random.Random(config.seed)  # noqa: S311 - picks tasks, keeps no secret

    async def setup(self) -> None:
        """Load data, start helpers; called once before the first item."""

    def items(self) -> Iterable[ItemT] | AsyncIterable[ItemT]:
        """The tasks, in order; when they end, they start again."""
        raise NotImplementedError(f"{type(self).__name__} has no items()")

    async def rollout(self, item: ItemT, client: SamplingClient) -> Group | None:
        """Let the policy attempt the item `group_size` times and score each attempt; None skips the item."""
        raise NotImplementedError(f"{type(self).__name__} has no rollout()")

    async def evaluate(self, client: SamplingClient) -> Mapping[str, float] | None:
        """Measure the policy, every `evaluate_every_steps` steps; names and numbers go to the log and to metrics."""
        return None

    async def close(self) -> None:
        """Stop what `setup` started."""


AnyEnvironment = Environment[Any, Any]


def build(kind: type[AnyEnvironment], fields: Mapping[str, Any]) -> AnyEnvironment:
    return kind(validated(kind, fields))


def validated(kind: type[AnyEnvironment], fields: Mapping[str, Any]) -> Config:
    """The environment's config; a wrong field is named together with what would be right."""
    try:
        return kind.config_class.model_validate(dict(fields))
    except ValidationError as error:
        known = sorted(kind.config_class.model_fields)
        lines = [_describe(problem, known) for problem in error.errors()]
        raise InvalidConfigError("\n".join(lines)) from None


def _describe(problem: Any, known: Sequence[str]) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        hint = nearest(where, known) or f"; known fields: {', '.join(known)}"
        return f"config.{where}: unknown field{hint}"
    return f"config.{where}: {problem['msg']} (is {reprlib.repr(problem['input'])})"
