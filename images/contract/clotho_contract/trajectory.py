"""Scored groups: what environments send, the API server queues and trainers read, and how they fit into batches."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw, Struct
from msgspec.structs import force_setattr

IGNORE_INDEX: Final = -100  # in `masks`: a token without loss, because the policy did not write it
NO_LOGPROB: Final = 1.0  # in `inference_logprobs`: no log-probability, because the token was not sampled
NULL: Final = Raw(b"null")
DEFAULT_GROUP_SIZE: Final = 4  # of an Atropos environment whose config does not set it


class Override(Struct, frozen=True, omit_defaults=True):
    set_advantage_to_zero: bool | None = None
    truncated: bool | None = None  # set by Clotho's own environments: the token limit ended the completion


class GenerationParams(Struct, frozen=True, omit_defaults=True):
    policy_version: int | None = None


class ScoredGroup(Struct, frozen=True, omit_defaults=True):
    """Completions of one prompt with their scores, in Atropos' fields and order. An empty optional list means absent.

    Lists have one entry per sequence; those of `tokens`, `masks`, `advantages` and `inference_logprobs` are lists with
    one entry per token. Fields that no Clotho component interprets stay JSON.
    """

    tokens: list[list[int]]
    masks: list[list[int]]
    scores: list[float]
    advantages: list[list[float]] | None = None
    ref_logprobs: Raw = NULL
    messages: Raw = NULL
    generation_params: GenerationParams | None = None
    inference_logprobs: list[list[float]] | None = None
    overrides: list[Override | None] | None = None
    group_overrides: Override | None = None
    images: Raw = NULL
    env_id: int | None = None
    distill_token_ids: Raw = NULL
    distill_logprobs: Raw = NULL

    def __post_init__(self) -> None:
        for name in ("advantages", "inference_logprobs", "overrides"):
            force_setattr(self, name, getattr(self, name) or None)

    @property
    def policy_version(self) -> int | None:
        return self.generation_params.policy_version if self.generation_params else None


def group_size_of(config: Mapping[str, Any]) -> int:
    """The group size in an environment's config; the default where it is absent or not an integer."""
    size = config.get("group_size", DEFAULT_GROUP_SIZE)
    return size if isinstance(size, int) and not isinstance(size, bool) else DEFAULT_GROUP_SIZE


def divides_batch(group_size: int, batch_size: int) -> bool:
    """A batch consists of whole groups."""
    return batch_size % group_size == 0


def batch_size_problem(batch_size: int, group_size: int, environment: str) -> str | None:
    """Why groups of this environment cannot fill a batch, with the nearest batch sizes that they can fill."""
    if divides_batch(group_size, batch_size):
        return None
    below = batch_size - batch_size % group_size
    nearest = f"{below} or {below + group_size}" if below else f"{group_size}"
    return (
        f"training.batchSize: {batch_size} is not a multiple of group_size {group_size} (environment {environment}); "
        f"use {nearest}"
    )
