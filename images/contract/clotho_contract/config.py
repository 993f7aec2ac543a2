"""`/etc/clotho/run.yaml`: one file, rendered by the operator, the same for every pod of a run. It holds no secrets."""

import os
from collections.abc import Collection
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from clotho_contract.inline import Inline
from clotho_contract.names import CONFIG_PATH, CONFIG_VARIABLE
from clotho_contract.settings import S3, Export, Inference, Model, PositiveInt, Settings, Sharding, Training, Wandb
from clotho_contract.trajectory import group_size_of

_FEWEST_DECODED = 128  # sequences of an engine, for environments that open more than a small batch
_MOST_DECODED = 512  # with more, each takes longer and all together gain little


class ConfigError(Exception):
    """The config file is missing or wrong; the message says where and what to do."""


class RunIdentity(Settings, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    namespace: Annotated[str, Meta(min_length=1)]
    id: Annotated[str, Meta(min_length=1, description="Short and unique among all runs, also those of the same name.")]


class Endpoints(Settings, frozen=True, omit_defaults=True):
    """Base URLs without a trailing slash and without credentials."""

    api_server: str = ""  # a run without environments has none
    inference: str = ""  # of rank 0
    inference_ranks: tuple[str, ...] = ()  # of all ranks, by rank; empty where there is only one
    serving_ranks: int | None = None  # the first so many serve the policy; absent: all of them
    inference_replicas: tuple[str, ...] = ()  # of the inference replicas; changes while the run goes on
    policy: str = ""  # where inference replicas get the policy: the policy port of rank 0

    @property
    def rank_urls(self) -> tuple[str, ...]:
        return self.inference_ranks or ((self.inference,) if self.inference else ())

    @property
    def policy_urls(self) -> tuple[str, ...]:
        """Every server of the policy."""
        return (*self.rank_urls[: self.serving_ranks], *self.inference_replicas)


class EnvironmentConfig(Settings, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    weight: Annotated[float, Meta(gt=0)] = 1.0
    min_batch_allocation: Annotated[float, Meta(ge=0, le=1)] | None = None
    entry: str = ""  # what the environment image runs: a class, an Atropos file, `reasoning-gym:<task>`, ...
    config: dict[str, Any] = field(default_factory=dict)  # the environment's own fields, passed on untouched
    locked: tuple[str, ...] = ()  # those of them that an administrator set for all environments

    def config_for(self, known: Collection[str]) -> dict[str, Any]:
        """A locked field concerns only environments that have it."""
        return {name: value for name, value in self.config.items() if name in known or name not in self.locked}

    @property
    def group_size(self) -> int:
        return group_size_of(self.config)


class ApiServerConfig(Settings, frozen=True):
    max_queue_bytes: PositiveInt = 8 * 1024**3
    max_body_bytes: PositiveInt = 512 * 1024**2
    lease_seconds: PositiveInt = 600
    environment_timeout_seconds: PositiveInt = 300


class RunConfig(Settings, frozen=True):
    run: RunIdentity
    model: Model
    training: Training
    endpoints: Endpoints = field(default_factory=Endpoints)
    environments: tuple[EnvironmentConfig, ...] = ()
    inline: Inline | None = None  # instead of environments
    export: Export | None = None
    inference: Inference = field(default_factory=Inference)
    api_server: ApiServerConfig = field(default_factory=ApiServerConfig)
    wandb: Wandb | None = None
    tensorboard: bool = False
    stall_after_seconds: PositiveInt = 1800
    sharding: Sharding = "none"
    s3: S3 | None = None  # where checkpoints are copied to
    resume_from: str = ""  # an s3:// location that another run has copied its checkpoints to
    continues_other_runs: bool = False  # without checkpoints of its own, the run starts from another run's

    @property
    def samples_elsewhere(self) -> bool:
        """On GPUs that train nothing."""
        uses_server = self.inference.engine == "vllm" and self.inference.vllm.mode == "server"
        return uses_server or bool(self.endpoints.inference_replicas)

    @property
    def sequences_in_flight(self) -> int:
        """By default one batch, so that samples are about a step old. Two where inference has GPUs of its own, so that
        it samples one while the other is trained."""
        return self.training.batch_size * (2 if self.samples_elsewhere else 1)

    @property
    def decoded_together(self) -> int:
        """Sequences of one engine, at most: its share of those in flight, unless the run says how many."""
        if self.inference.max_batch_size is not None:
            return self.inference.max_batch_size
        share = ceil(self.sequences_in_flight / max(len(self.endpoints.policy_urls), 1))
        return min(max(share, _FEWEST_DECODED), _MOST_DECODED)

    def environment(self, name: str) -> EnvironmentConfig:
        for candidate in self.environments:
            if candidate.name == name:
                return candidate
        known = ", ".join(e.name for e in self.environments) or "none"
        raise ConfigError(f"environment {name!r} is not in the run's config; it has: {known}")


def render(config: RunConfig) -> str:
    return msgspec.yaml.encode(config).decode()


def parse(text: str | bytes, source: str = "config") -> RunConfig:
    try:
        return msgspec.yaml.decode(text, type=RunConfig)
    except msgspec.MsgspecError as error:  # names the field, e.g. `$.training.steps`
        raise ConfigError(f"{source}: {error}") from error


def load(path: Path | None = None) -> RunConfig:
    """Read the file named by the argument, else by $CLOTHO_CONFIG, else the place where the operator mounts it."""
    path = path or Path(os.environ.get(CONFIG_VARIABLE) or CONFIG_PATH)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the run's config {path}: {error.strerror}; set ${CONFIG_VARIABLE}") from error
    return parse(text, str(path))
