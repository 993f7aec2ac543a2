"""Scored groups as they come over the wire, checked one by one: a bad group must not take a good batch with it."""

from typing import Any

import msgspec
from msgspec import Struct

UNTRAINED = -100  # in `masks`: this token was not written by the policy
_HUGE = 1e30  # single precision ends at 3e38
NOT_SAMPLED = 1.0  # in `inference_logprobs`: the same


class Override(Struct, frozen=True):
    set_advantage_to_zero: bool | None = None
    truncated: bool | None = None  # said by Clotho's own environments: the token limit ended the completion


class GenerationParams(Struct, frozen=True):
    policy_version: int | None = None


class Group(Struct, frozen=True):
    """One prompt's completions. Fields that the trainer does not use are ignored."""

    tokens: list[list[int]]
    masks: list[list[int]]
    scores: list[float]
    advantages: list[list[float]] | None = None
    inference_logprobs: list[list[float]] | None = None
    overrides: list[Override | None] | None = None
    group_overrides: Override | None = None
    generation_params: GenerationParams | None = None
    env_id: int | None = None

    @property
    def policy_version(self) -> int | None:
        return self.generation_params.policy_version if self.generation_params else None


class InvalidGroupError(ValueError):
    """The group cannot be trained on; the message says what is wrong with it."""


def decode(raw: bytes | msgspec.Raw, vocabulary: int) -> Group:
    try:
        group = msgspec.json.decode(raw, type=Group)
    except msgspec.MsgspecError as error:
        raise InvalidGroupError(str(error)) from error
    check(group, vocabulary)
    return group


def check(group: Group, vocabulary: int) -> None:
    size = len(group.tokens)
    if size == 0:
        raise InvalidGroupError("it has no sequences")
    per_sequence: dict[str, list[Any] | None] = {
        "masks": group.masks,
        "scores": group.scores,
        "advantages": group.advantages,
        "inference_logprobs": group.inference_logprobs,
        "overrides": group.overrides,
    }
    for name, values in per_sequence.items():
        if values is not None and len(values) != size:
            raise InvalidGroupError(f"{name} has {len(values)} entries for {size} sequences")
    if not all(abs(score) < _HUGE for score in group.scores):
        raise InvalidGroupError("a score is too large to compute with")
    for index, tokens in enumerate(group.tokens):
        _check_sequence(group, index, tokens, vocabulary)


def _check_sequence(group: Group, index: int, tokens: list[int], vocabulary: int) -> None:
    if len(tokens) < 2:
        raise InvalidGroupError(f"sequence {index} has {len(tokens)} tokens; a prompt and a completion need two")
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        raise InvalidGroupError(
            f"sequence {index} has token ids outside 0..{vocabulary - 1}: it was made with another tokenizer"
        )
    per_token: dict[str, list[Any] | None] = {
        "masks": group.masks[index],
        "advantages": group.advantages[index] if group.advantages else None,
        "inference_logprobs": group.inference_logprobs[index] if group.inference_logprobs else None,
    }
    for name, values in per_token.items():
        if values is not None and len(values) != len(tokens):
            raise InvalidGroupError(f"{name}[{index}] has {len(values)} entries for {len(tokens)} tokens")
    numbers = [*(per_token["advantages"] or ()), *(per_token["inference_logprobs"] or ())]
    if not all(abs(number) < _HUGE for number in numbers):
        raise InvalidGroupError(f"sequence {index} has an advantage or log-probability too large to compute with")
