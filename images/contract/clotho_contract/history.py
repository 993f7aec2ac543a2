"""What is kept of a training for those who look at it later: curves, sampled groups and evaluations, all bounded.

The trainer makes it, the operator keeps it in a ConfigMap of the run, and the command line and the web page read it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from clotho_contract import untrusted
from clotho_contract.progress import LARGEST_FIGURE, LONGEST_NAME, MOST_SUMMARIES, Count, EvaluationSummary

PATH: Final = "/history"  # of the trainer's status port
LOG_KEY: Final = "history"  # of a trainer's last log line
MOST_POINTS: Final = 500
MOST_SERIES_BYTES: Final = 64 * 1024
MOST_SAMPLES: Final = 9  # groups
MOST_ANSWERS: Final = 8  # of a group
LONGEST_TEXT: Final = 1000  # characters of a prompt or an answer
MOST_SAMPLE_BYTES: Final = 96 * 1024
MOST_EVALUATIONS: Final = 100
MOST_EVALUATION_BYTES: Final = 64 * 1024
MOST_EVALUATED: Final = 32  # figures of one evaluation

# The figures of a step that are kept, by the trainer's own names: reward/mean is kept as rewardMean.
RECORDED: Final = (
    "reward/mean",
    "reward/std",
    "percent_correct",
    "loss",
    "world_model_loss",  # with training.worldModel
    "kl",
    "entropy",
    "gradient_norm",
    "learning_rate",
    "completions/mean_length",
    "completions/truncated",
    "tools/calls_per_rollout",  # with inline.tools
    "staleness/mean",
    "tokens_per_second",
    "seconds_per_step",
    "seconds_waiting",  # for groups
    "seconds_sampling",  # of an inline run, which samples its groups itself
    "seconds_training",
)

SampleKind = Literal["newest", "best", "worst"]
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]


class Series(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Figures over steps: one value, or None, for each step."""

    steps: tuple[Count, ...] = ()
    figures: dict[str, tuple[float | None, ...]] = {}

    def points(self, figure: str) -> list[tuple[int, float]]:
        """Steps and values, where there is a value."""
        values = self.figures.get(figure, ())
        return [(step, value) for step, value in zip(self.steps, values, strict=False) if value is not None]


class Answer(Struct, frozen=True, kw_only=True):
    text: str
    reward: float | None = None
    advantage: float | None = None


class SampleGroup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt with its answers. The texts are a policy's and an environment's: untrusted."""

    step: Count
    kind: SampleKind
    environment: str = ""
    version: int | None = None  # of the policy that wrote the answers
    prompt: str = ""
    answers: tuple[Answer, ...] = ()


class Evaluation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an environment's evaluation returned."""

    step: Count
    time: str  # RFC 3339
    environment: str
    figures: dict[str, float]


class History(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything together: what a trainer answers on `/history`, and what is known of a run."""

    series: Series = Series()
    samples: tuple[SampleGroup, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()


Points = Mapping[int, Mapping[str, float | None]]
"""Figures of steps, by their camelCase names."""


def camel_case(figure: str) -> str:
    first, *others = figure.replace("/", "_").split("_")
    return first + "".join(each.capitalize() for each in others)


FIGURES: Final = tuple(camel_case(figure) for figure in RECORDED)


def recorded(figures: Mapping[str, float]) -> dict[str, float | None]:
    """A step's figures as they are kept; those that are not numbers are None."""
    return {camel_case(name): tidy(figures[name]) for name in RECORDED if name in figures}


def tidy(value: float | None) -> float | None:
    """Four significant digits; what is not a number has no place in JSON."""
    if value is None or not math.isfinite(value) or abs(value) > LARGEST_FIGURE:
        return None
    return float(f"{value:.4g}")


def series_of(points: Points) -> Series:
    """At most MOST_POINTS steps, the first and the last among them, in at most MOST_SERIES_BYTES."""
    steps = sorted(points)
    room = min(MOST_POINTS, len(steps))
    while True:
        chosen = spread(steps, room)
        names = [name for name in FIGURES if any(name in points[step] for step in chosen)]
        figures = {name: tuple(points[step].get(name) for step in chosen) for name in names}
        series = Series(steps=tuple(chosen), figures=figures)
        if len(msgspec.json.encode(series)) <= MOST_SERIES_BYTES:
            return series
        room = room * 3 // 4


def points_of(series: Series) -> dict[int, dict[str, float | None]]:
    rows = [dict(zip(series.figures, row, strict=True)) for row in zip(*series.figures.values(), strict=False)]
    return dict(zip(series.steps, rows, strict=False))


T = TypeVar("T")


def spread(items: Sequence[T], room: int) -> list[T]:
    """At most `room` of them at even distances, first and last included."""
    if len(items) <= room:
        return list(items)
    return [items[round(index * (len(items) - 1) / (room - 1))] for index in range(room)]


def merged(old: History, new: History) -> History:
    """`new` is the report of a trainer, or what came after an earlier report. From its first step on it replaces the
    old points: a trainer that resumed from a checkpoint makes the later steps again."""
    first = min(new.series.steps, default=None)
    kept = {step: row for step, row in points_of(old.series).items() if first is None or step < first}
    return History(
        series=series_of(kept | points_of(new.series)),
        samples=new.samples or old.samples,
        evaluations=evaluations_of((*old.evaluations, *new.evaluations)),
    )


def evaluations_of(evaluations: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """Each once, oldest first: the newest that fit."""
    each = {(one.time, one.environment, one.step): one for one in evaluations}
    ordered = tuple(sorted(each.values(), key=lambda one: (one.time, one.step, one.environment)))[-MOST_EVALUATIONS:]
    while len(msgspec.json.encode(ordered)) > MOST_EVALUATION_BYTES:
        ordered = ordered[1 + len(ordered) // 8 :]
    return ordered


def summaries(evaluations: Iterable[Evaluation]) -> tuple[EvaluationSummary, ...]:
    """The newest and the highest value of each figure; of too many figures, those that were evaluated last."""
    found: dict[tuple[str, str], EvaluationSummary] = {}
    for each in evaluations:
        for figure, value in each.figures.items():
            before = found.pop((each.environment, figure), None)
            is_best = before is None or value > before.best
            found[each.environment, figure] = EvaluationSummary(
                environment=each.environment,
                figure=figure,
                step=each.step,
                value=value,
                best_step=each.step if before is None or is_best else before.best_step,
                best=value if before is None or is_best else before.best,
            )
    newest = list(found.values())[-MOST_SUMMARIES:]
    return tuple(sorted(newest, key=lambda each: (each.environment, each.figure)))


def best_of(evaluations: Iterable[Evaluation], rule: str) -> Evaluation | None:
    """By the figure that `checkpoint.keepBest` names, with a minus where lower is better; of equals, the newest."""
    figure, sign = rule.removeprefix("-"), -1 if rule.startswith("-") else 1
    known = [each for each in evaluations if figure in each.figures]
    return max(known, key=lambda each: (sign * each.figures[figure], each.time), default=None)


def shortened(text: str, limit: int = LONGEST_TEXT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} more characters]"


def samples_of(groups: Iterable[SampleGroup]) -> tuple[SampleGroup, ...]:
    """Few, short, and at most MOST_SAMPLE_BYTES together."""
    limit = LONGEST_TEXT
    few = tuple(groups)[:MOST_SAMPLES]
    while True:
        short = tuple(_short(group, limit) for group in few)
        if limit < 50 or len(msgspec.json.encode(short)) <= MOST_SAMPLE_BYTES:
            return short
        limit //= 2


def _short(group: SampleGroup, limit: int) -> SampleGroup:
    answers = tuple(
        Answer(text=shortened(each.text, limit), reward=tidy(each.reward), advantage=tidy(each.advantage))
        for each in group.answers[:MOST_ANSWERS]
    )
    return msgspec.structs.replace(
        group, prompt=shortened(group.prompt, limit), environment=group.environment[:LONGEST_NAME], answers=answers
    )


def encode(history: History) -> bytes:
    return msgspec.json.encode(history)


def decode(body: bytes | str) -> History:
    """Untrusted code may have written it. Raises msgspec.MsgspecError for anything but a History."""
    return bounded(untrusted.decode(body, History))


def bounded(history: History) -> History:
    """What no trainer would report is left out or shortened."""
    rows = points_of(history.series)
    points = {step: {name: tidy(row[name]) for name in FIGURES if name in row} for step, row in rows.items()}
    return History(
        series=series_of(points),
        samples=samples_of(history.samples),
        evaluations=evaluations_of(bounded_evaluation(each) for each in history.evaluations),
    )


def bounded_evaluation(evaluation: Evaluation) -> Evaluation:
    named = [(name[:LONGEST_NAME], tidy(value)) for name, value in evaluation.figures.items()]
    figures = [(name, value) for name, value in named if value is not None]
    return Evaluation(
        step=evaluation.step,
        time=evaluation.time[:40],
        environment=evaluation.environment[:LONGEST_NAME],
        figures=dict(figures[:MOST_EVALUATED]),
    )
