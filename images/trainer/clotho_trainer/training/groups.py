"""Scored groups as they come over the wire, checked one by one: a bad group must not take a good batch with it."""

from typing import Any

import msgspec

from clotho_contract.trajectory import ScoredGroup

_HUGE = 1e30  # single precision ends at 3e38


class InvalidGroupError(ValueError):
    """The group cannot be trained on; the message is the reason."""


def decode(raw: bytes | msgspec.Raw, vocabulary: int) -> ScoredGroup:
    try:
        group = msgspec.json.decode(raw, type=ScoredGroup)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidGroupError(str(error)) from error
    check(group, vocabulary)
    return group


def check(group: ScoredGroup, vocabulary: int) -> None:
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


def _check_sequence(group: ScoredGroup, index: int, tokens: list[int], vocabulary: int) -> None:
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
    for name in ("advantages", "inference_logprobs"):
        numbers = per_token[name]
        if numbers and (min(numbers) <= -_HUGE or max(numbers) >= _HUGE):  # JSON has no NaN
            raise InvalidGroupError(f"sequence {index} has an advantage or log-probability too large to compute with")
