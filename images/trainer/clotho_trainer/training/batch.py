"""From scored groups to training rows: advantages, masks, staleness and the figures that are reported. Pure."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clotho_contract.trajectory import IGNORE_INDEX, NO_LOGPROB, ScoredGroup

Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]
Normalization = Literal["group", "batch", "none"]

_LEAST_DEVIATION = 1e-8  # rewards that are all alike have none
_MADE_UP = 256  # tokens of an answer


@dataclass(frozen=True)
class Rules:
    max_tokens: int
    normalization: Normalization = "group"
    mask_truncated: bool = False
    end_tokens: frozenset[int] = frozenset()
    max_staleness: int = 0


@dataclass(frozen=True)
class Row:
    """One sequence: everything before the first trained token is the prompt."""

    prompt: Tokens
    completion: Tokens
    trained: NDArray[np.bool_]  # which completion tokens the policy wrote
    counted: NDArray[np.bool_]  # which completion tokens take part in any loss
    advantages: Floats
    logprobs: Floats  # of the completion under the policy that wrote it; NaN where unknown

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True)
class Observed:
    """How much of a batch the environment wrote after the prompts: what a world model learns from."""

    tokens: int = 0
    rows: int = 0  # with any such token


@dataclass(frozen=True)
class GroupRows:
    """The rows of one group, with their scores."""

    rows: tuple[Row, ...]
    scores: tuple[float, ...]
    environment: int | None  # its id
    version: int | None  # of the policy that wrote them


@dataclass(frozen=True)
class Batch:
    rows: tuple[Row, ...]
    figures: dict[str, float]
    groups: tuple[GroupRows, ...] = ()
    dropped: tuple[str, ...] = field(default=())

    @property
    def tokens(self) -> int:
        return sum(row.length for row in self.rows)

    @property
    def trained_tokens(self) -> int:
        return trained_tokens(self.rows)

    @property
    def rows_with_advantages(self) -> tuple[Row, ...]:
        """The others have no gradient in a policy loss. Never none, so that every step has one."""
        found = tuple(row for row in self.rows if row.advantages[row.trained & row.counted].any())
        return found or (min(self.rows, key=lambda row: row.length),)

    @property
    def observed(self) -> Observed:
        counts = [int((~row.trained & row.counted).sum()) for row in self.rows]
        return Observed(sum(counts), sum(count > 0 for count in counts))


def trained_tokens(rows: Iterable[Row]) -> int:
    return sum(int((row.trained & row.counted).sum()) for row in rows)


def prepare(groups: Sequence[ScoredGroup], rules: Rules, version: int) -> Batch:
    fresh, dropped = _drop_stale(groups, rules.max_staleness, version)
    advantages = group_advantages([group.scores for group in fresh], rules.normalization)
    rows: list[Row] = []
    found: list[GroupRows] = []
    truncated = 0
    for group, values in zip(fresh, advantages, strict=True):
        first, scores = len(rows), []
        for index, advantage in enumerate(values):
            row = make_row(group, index, advantage, rules.max_tokens)
            if row is None:
                continue
            if _is_truncated(row, group, index, rules):
                truncated += 1
                if rules.mask_truncated:
                    row = _silenced(row)
            rows.append(row)
            scores.append(group.scores[index])
        if scores:
            found.append(GroupRows(tuple(rows[first:]), tuple(scores), group.env_id, group.policy_version))
    figures = _figures(fresh, rows, version)
    figures["completions/truncated"] = truncated / max(len(rows), 1)
    return Batch(tuple(rows), figures, tuple(found), tuple(dropped))


def group_advantages(scores: Sequence[Sequence[float]], normalization: Normalization) -> list[Floats]:
    """Centred on the group's mean; divided by the deviation of the group, of the whole batch, or not at all. Equal
    scores are exactly 0, though their mean may be rounded."""
    centred = [
        np.asarray(group, np.float64) - (np.mean(group) if len(set(group)) > 1 else group[:1]) for group in scores
    ]
    if normalization == "none":
        return [values.astype(np.float32) for values in centred]
    if normalization == "batch":
        everything = np.concatenate([np.asarray(group, np.float64) for group in scores] or [np.zeros(0)])
        deviations = [_deviation(everything)] * len(scores)
    else:
        deviations = [_deviation(np.asarray(group, np.float64)) for group in scores]
    scaled = zip(centred, deviations, strict=True)
    return [(values / max(deviation, _LEAST_DEVIATION)).astype(np.float32) for values, deviation in scaled]


def make_row(group: ScoredGroup, index: int, advantage: float, max_tokens: int) -> Row | None:
    """None when nothing of the sequence can be trained."""
    tokens = _integers(group.tokens[index][:max_tokens])
    trained = _integers(group.masks[index][:max_tokens]) != IGNORE_INDEX
    if not trained[1:].any():  # the first token has no probability: nothing comes before it
        return None
    start = max(int(trained.argmax()), 1)
    completion, part = tokens[start:], slice(start, max_tokens)
    return Row(
        prompt=tokens[:start],
        completion=completion,
        trained=trained[start:],
        counted=np.ones(len(completion), np.bool_),
        advantages=_token_advantages(group, index, advantage, part, len(completion)),
        logprobs=_token_logprobs(group, index, part, len(completion)),
    )


def micro_batches(rows: Iterable[Row], *, rows_each: int, tokens_each: int, is_packed: bool) -> list[list[Row]]:
    """At most `rows_each`, or what `tokens_each` allows. Rows of one prompt go together where it is read once for all
    of them, else rows of like length, so that little is padded."""
    cost = packed_tokens if is_packed else _padded_tokens
    ordered = sorted(rows, key=lambda row: row.length, reverse=True)
    if is_packed:
        ordered.sort(key=lambda row: row.prompt.tobytes())
    batches: list[list[Row]] = []
    for row in ordered:
        larger = [*batches[-1], row] if batches else []
        if larger and (len(larger) <= rows_each if rows_each else cost(larger) <= tokens_each):
            batches[-1] = larger
        else:
            batches.append([row])
    return batches


def blank(row: Row) -> Row:
    """A row of the same prompt that adds nothing to any loss."""
    nothing = np.zeros(1, np.float32)
    flags = np.ones(1, np.bool_)
    return Row(row.prompt, row.completion[:1], flags, ~flags, nothing, nothing + np.float32(np.nan))


def made_up(rows: int) -> Batch:
    """Answers to one prompt that teach nothing, where any will do; long enough for the kernels of usual ones. The last
    token of each is an environment's."""
    counted, nothing = np.ones(_MADE_UP, np.bool_), np.zeros(_MADE_UP, np.float32)
    row = Row(
        prompt=np.zeros(8, np.int64),
        completion=np.zeros(_MADE_UP, np.int64),
        trained=np.arange(_MADE_UP) < _MADE_UP - 1,
        counted=counted,
        advantages=nothing,
        logprobs=nothing + np.float32(np.nan),
    )
    return Batch((row,) * rows, {})


def packed_tokens(rows: Sequence[Row]) -> int:
    prompts = {row.prompt.tobytes(): len(row.prompt) for row in rows}
    return sum(prompts.values()) + sum(len(row.completion) for row in rows)


def _padded_tokens(rows: Sequence[Row]) -> int:
    return len(rows) * max(row.length for row in rows)


def _drop_stale(groups: Sequence[ScoredGroup], limit: int, version: int) -> tuple[list[ScoredGroup], list[str]]:
    fresh: list[ScoredGroup] = []
    dropped: list[str] = []
    for group in groups:
        age = 0 if group.policy_version is None else version - group.policy_version
        if limit and age > limit:
            dropped.append(f"made by policy {group.policy_version}, {age} steps ago; maxStaleness is {limit}")
        else:
            fresh.append(group)
    return fresh, dropped


def _token_advantages(group: ScoredGroup, index: int, advantage: float, part: slice, length: int) -> Floats:
    override = (group.overrides[index] if group.overrides else None) or group.group_overrides
    if override is not None and override.set_advantage_to_zero:
        return np.zeros(length, np.float32)
    if group.advantages is not None:
        return _floats(group.advantages[index][part])
    return np.full(length, advantage, np.float32)


def _token_logprobs(group: ScoredGroup, index: int, part: slice, length: int) -> Floats:
    if group.inference_logprobs is None:
        return np.full(length, np.nan, np.float32)
    logprobs = _floats(group.inference_logprobs[index][part])
    return np.where(logprobs < NO_LOGPROB, np.minimum(logprobs, 0), np.float32(np.nan))


def _integers(values: Sequence[int]) -> Tokens:
    return np.frombuffer(_packed("q", values), np.int64)


def _floats(values: Sequence[float]) -> Floats:
    return np.frombuffer(_packed("f", values), np.float32)


def _packed(kind: str, values: Sequence[float]) -> bytearray:
    """In less than half the time that numpy takes for a list."""
    form = f"{len(values)}{kind}"
    packed = bytearray(struct.calcsize(form))
    struct.pack_into(form, packed, 0, *values)
    return packed


def _is_truncated(row: Row, group: ScoredGroup, index: int, rules: Rules) -> bool:
    override = group.overrides[index] if group.overrides else None
    if len(group.tokens[index]) > row.length or (override is not None and override.truncated):
        return True
    if group.policy_version is not None:  # Clotho's own environments say it when a completion was cut
        return False
    return bool(rules.end_tokens) and bool(row.trained[-1]) and int(row.completion[-1]) not in rules.end_tokens


def _silenced(row: Row) -> Row:
    return Row(row.prompt, row.completion, row.trained, np.zeros_like(row.counted), row.advantages, row.logprobs)


def _deviation(scores: NDArray[np.float64]) -> float:
    return float(scores.std(ddof=1)) if len(scores) > 1 else 0.0


def _figures(groups: Sequence[ScoredGroup], rows: Sequence[Row], version: int) -> dict[str, float]:
    if not rows:
        return {}
    scores = np.concatenate([np.asarray(group.scores, np.float64) for group in groups])
    advantages = np.concatenate([row.advantages[row.trained] for row in rows])
    lengths = np.asarray([row.trained.sum() for row in rows])
    ages = [version - group.policy_version for group in groups if group.policy_version is not None]
    return {
        "reward/mean": float(scores.mean()),
        "reward/std": float(scores.std()),
        "reward/max": float(scores.max()),
        "reward/min": float(scores.min()),
        "reward/zero_deviation_groups": float(np.mean([len(set(group.scores)) == 1 for group in groups])),
        "advantage/mean": float(advantages.mean()),
        "advantage/max": float(advantages.max()),
        "advantage/min": float(advantages.min()),
        "percent_correct": float((scores > 0).mean() * 100),
        "completions/mean_length": float(lengths.mean()),
        "completions/max_length": float(lengths.max()),
        "completions/min_length": float(lengths.min()),
        "staleness/mean": float(np.mean(ages)) if ages else 0.0,
        "staleness/max": float(max(ages)) if ages else 0.0,
    }
