"""Curves and sampled answers as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from clotho.cli.terminal.fitting import wrap
from clotho.cli.terminal.view import PLOT_HEIGHT, WIDEST_CURVE, plot
from clotho_contract.history import FIGURES, SampleGroup, Series

TITLES: Final[Mapping[str, str]] = {
    "rewardMean": "reward, mean",
    "rewardStd": "reward, standard deviation",
    "percentCorrect": "answers with a reward above 0, percent",
    "loss": "loss",
    "worldModelLoss": "loss on what tools and environments wrote (ECHO)",
    "kl": "KL divergence from the reference",
    "entropy": "entropy",
    "gradientNorm": "gradient norm",
    "learningRate": "learning rate",
    "completionsMeanLength": "completion length, tokens",
    "completionsTruncated": "truncated completions, share",
    "toolsCallsPerRollout": "tool calls per rollout",
    "stalenessMean": "staleness, steps",
    "tokensPerSecond": "tokens per second",
    "secondsPerStep": "seconds per step",
    "secondsWaiting": "seconds per step, waiting for groups",
    "secondsSampling": "seconds per step, sampling",
    "secondsTraining": "seconds per step, training",
}
INDENT: Final = "    "


def curves(series: Series, chosen: Sequence[str], width: int) -> list[str]:
    """One chart for each figure that has values; by default, for all."""
    names = chosen or FIGURES
    charts = [list(_chart(series, name, width)) for name in names if series.points(name)]
    return [line for chart in charts for line in (*chart, "")][:-1]


def _chart(series: Series, name: str, width: int) -> Iterator[str]:
    points = series.points(name)
    values = [value for _, value in points]
    yield f"{TITLES[name]} ({name}): {values[-1]:g}"
    yield from plot(values, max(2, min(width - 12, WIDEST_CURVE)), PLOT_HEIGHT)
    yield f"{'':10}steps {points[0][0]} to {points[-1][0]}"


def samples(groups: Sequence[SampleGroup], width: int) -> list[str]:
    blocks = [list(_group(group, width)) for group in groups]
    return [line for block in blocks for line in (*block, "")][:-1]


def _group(group: SampleGroup, width: int) -> Iterator[str]:
    version = f", policy of step {group.version}" if group.version is not None else ""
    source = f" of {group.environment}" if group.environment else ""
    yield f"step {group.step}: {group.kind} group{source}{version}"
    yield "  prompt"
    yield from _text(group.prompt, width)
    for answer in group.answers:
        yield f"  answer  reward {_number(answer.reward)}  advantage {_number(answer.advantage)}"
        yield from _text(answer.text, width)


def _text(text: str, width: int) -> Iterator[str]:
    for line in text.splitlines() or [""]:
        yield from (f"{INDENT}{part}" for part in wrap(line, max(20, width - len(INDENT))))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:z.3g}"
