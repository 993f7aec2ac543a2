"""A group is several scored attempts at one item: what an environment makes and a trainer learns from."""

import math
import re
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from itertools import compress
from typing import Protocol, TypeVar

import msgspec
from msgspec import Raw

from clotho_contract.trajectory import IGNORE_INDEX, NO_LOGPROB, NULL, GenerationParams, Override, ScoredGroup

Value = TypeVar("Value")

_HIGHEST = 1e-3  # logarithm of a probability: servers round


@dataclass(frozen=True, slots=True)
class Sequence:
    """One attempt as tokens; `trained` marks those that the policy wrote, `logprobs` counts only there."""

    tokens: tuple[int, ...]
    trained: tuple[bool, ...]
    logprobs: tuple[float, ...]
    policy_version: int | None = None
    is_truncated: bool = False

    @property
    def sequence(self) -> "Sequence":
        return self


class Attempt(Protocol):
    """Anything that can be trained on: a `Completion`, a `Conversation`, or a `Sequence` made by hand."""

    @property
    def sequence(self) -> Sequence: ...


@dataclass(frozen=True, slots=True)
class Group:
    """Attempts at the same item and their scores, in the same order.

    `advantages` (one number a token, for each attempt) replaces those that the trainer derives from the scores;
    `messages` (one conversation an attempt) is for display and never trained on.
    """

    attempts: Listing[Attempt]
    scores: Listing[float]
    advantages: Listing[Listing[float]] | None = None
    messages: Listing[Listing[object]] | None = None


class InvalidGroupError(ValueError):
    """A group that cannot be trained on; the message names the field and the index."""


def check_scores(group: object, group_size: int) -> Group:
    """The group, if it is one: as many attempts and finite scores as the config promises."""
    if not isinstance(group, Group):
        raise InvalidGroupError(f"rollout() returned a {type(group).__name__}, not a Group (None skips the item)")
    if len(group.attempts) != group_size:
        raise InvalidGroupError(f"attempts: {len(group.attempts)} of them, but group_size is {group_size}")
    for field in ("scores", "advantages", "messages"):
        values = getattr(group, field)
        if values is not None and len(values) != group_size:
            raise InvalidGroupError(f"{field}: {len(values)} of them for {group_size} attempts")
    for i, score in enumerate(group.scores):
        if not _is_finite(score):
            raise InvalidGroupError(f"scores[{i}]: {score!r} is not a finite number")
    return group


def check_group(group: object, group_size: int) -> list[Sequence]:
    """The sequences of a sound group; everything else is refused before it can reach the trainer."""
    group = check_scores(group, group_size)
    sequences = [_sequence_of(attempt, f"attempts[{i}]") for i, attempt in enumerate(group.attempts)]
    for i, advantages in enumerate(group.advantages or ()):
        _check_advantages(advantages, len(sequences[i].tokens), f"advantages[{i}]")
    return sequences


def _sequence_of(attempt: object, where: str) -> Sequence:
    sequence = getattr(attempt, "sequence", None)
    if not isinstance(sequence, Sequence):
        raise InvalidGroupError(f"{where}: a {type(attempt).__name__} is not a Completion, Conversation or Sequence")
    length = len(sequence.tokens)
    for field, values in (("trained", sequence.trained), ("logprobs", sequence.logprobs)):
        if len(values) != length:
            raise InvalidGroupError(f"{where}.{field}: {len(values)} of them for {length} tokens")
    if not any(sequence.trained):
        raise InvalidGroupError(f"{where}.trained: no token was written by the policy: nothing to train")
    if sequence.trained[0]:
        raise InvalidGroupError(f"{where}.trained[0]: the first token has nothing before it; a prompt must come first")
    if not _is_plainly_sound(sequence):
        _check_values(sequence, where)
    return sequence


def _is_plainly_sound(sequence: Sequence) -> bool:
    """Without a loop in Python: whole batches come at once, and sampling waits meanwhile."""
    trained = tuple(compress(sequence.logprobs, sequence.trained))
    has_types = set(map(type, sequence.tokens)) == {int} and set(map(type, trained)) == {float}
    return has_types and min(sequence.tokens) >= 0 and max(trained) <= _HIGHEST and math.isfinite(sum(trained))


def _check_values(sequence: Sequence, where: str) -> None:
    for i, token in enumerate(sequence.tokens):
        if type(token) is not int or token < 0:
            raise InvalidGroupError(f"{where}.tokens[{i}]: {token!r} is not a token id")
    for i, (logprob, trained) in enumerate(zip(sequence.logprobs, sequence.trained, strict=True)):
        if trained and not (_is_finite(logprob) and logprob <= _HIGHEST):
            raise InvalidGroupError(f"{where}.logprobs[{i}]: {logprob!r} is not the logarithm of a probability")


def _check_advantages(advantages: Listing[float], length: int, where: str) -> None:
    if len(advantages) != length:
        raise InvalidGroupError(f"{where}: {len(advantages)} of them for {length} tokens")
    for i, advantage in enumerate(advantages):
        if not _is_finite(advantage):
            raise InvalidGroupError(f"{where}[{i}]: {advantage!r} is not a finite number")


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def encode_group(group: Group, sequences: list[Sequence], env_id: int | None) -> bytes:
    """The group as Atropos' `/scored_data` takes it, stamped with the oldest policy that wrote in it."""
    versions = [s.policy_version for s in sequences if s.policy_version is not None]
    is_truncated = any(s.is_truncated for s in sequences)
    written = [_written_by_policy(s) for s in sequences]
    scored = ScoredGroup(
        tokens=[list(s.tokens) for s in sequences],
        masks=[_only(of, s.tokens, IGNORE_INDEX) for of, s in zip(written, sequences, strict=True)],
        scores=[float(score) for score in group.scores],
        advantages=[list(row) for row in group.advantages] if group.advantages is not None else None,
        messages=Raw(msgspec.json.encode(group.messages)) if group.messages is not None else NULL,
        generation_params=GenerationParams(min(versions)) if versions else None,
        inference_logprobs=[_only(of, s.logprobs, NO_LOGPROB) for of, s in zip(written, sequences, strict=True)],
        overrides=[Override(truncated=s.is_truncated or None) for s in sequences] if is_truncated else None,
        env_id=env_id,
    )
    return msgspec.json.encode(scored)


def _written_by_policy(sequence: Sequence) -> list[slice]:
    """Few stretches, where there are many tokens."""
    return [slice(*found.span()) for found in re.finditer(b"\x01+", bytes(map(bool, sequence.trained)))]


def _only(stretches: list[slice], values: Listing[Value], otherwise: Value) -> list[Value]:
    kept = [otherwise] * len(values)
    for stretch in stretches:
        kept[stretch] = values[stretch]
    return kept
