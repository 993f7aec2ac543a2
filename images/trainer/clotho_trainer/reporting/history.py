"""What a training leaves for later: every step in `metrics.jsonl`, and a short history that the operator fetches.

The file is appended to and never rewritten. A step that is in it again was made again, after a restart from an earlier
checkpoint: what stands behind it counts, and what stood before it from that step on does not.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from clotho_contract import untrusted
from clotho_contract.history import (
    MOST_POINTS,
    Answer,
    Evaluation,
    History,
    SampleGroup,
    SampleKind,
    evaluations_of,
    recorded,
    samples_of,
    series_of,
)

log = logging.getLogger(__name__)

FILE: Final = "metrics.jsonl"
_EACH_KIND: Final = 3  # sampled groups


class _Line(msgspec.Struct):
    run: str
    step: int


class Curve:
    """At most MOST_POINTS steps at even distances, with the first and the last."""

    def __init__(self) -> None:
        self.points: dict[int, Mapping[str, float | None]] = {}
        self._stride = 1

    def add(self, step: int, row: Mapping[str, float | None]) -> None:
        known = list(self.points)
        for each in known:
            if each >= step or (each == known[-1] and not self._is_kept(each, known[0])):
                del self.points[each]
        self.points[step] = row
        while len(self.points) > MOST_POINTS:
            self._stride *= 2
            first = next(iter(self.points))
            self.points = {at: row for at, row in self.points.items() if at == step or self._is_kept(at, first)}

    def _is_kept(self, step: int, first: int) -> bool:
        return (step - first) % self._stride == 0


@dataclass(frozen=True)
class ScoredAnswers:
    """A group that was trained on, not decoded yet."""

    prompt: Iterable[int]
    answers: Sequence[Iterable[int]]
    rewards: Sequence[float]
    advantages: Sequence[float]
    environment: str = ""
    version: int | None = None

    @property
    def mean_reward(self) -> float:
        return sum(self.rewards) / len(self.rewards)


@dataclass
class Samples:
    """The newest groups, and those with the highest and the lowest mean reward; of equals, the newer."""

    decode: Callable[[list[int]], str]
    _kept: dict[SampleKind, list[tuple[float, SampleGroup]]] = field(
        default_factory=lambda: {"newest": [], "best": [], "worst": []}
    )

    def offer(self, step: int, groups: Sequence[ScoredAnswers]) -> None:
        if not groups:
            return
        best, worst = max(groups, key=_mean), min(groups, key=_mean)
        self._offer("newest", float(step), step, groups[0])
        self._offer("best", best.mean_reward, step, best)
        self._offer("worst", -worst.mean_reward, step, worst)

    def groups(self) -> tuple[SampleGroup, ...]:
        return samples_of(group for kept in self._kept.values() for _, group in kept)

    def _offer(self, kind: SampleKind, rank: float, step: int, group: ScoredAnswers) -> None:
        kept = self._kept[kind]
        if len(kept) == _EACH_KIND and rank < kept[-1][0]:
            return
        kept.append((rank, self._decoded(kind, step, group)))
        kept.sort(key=lambda each: (each[0], each[1].step), reverse=True)
        del kept[_EACH_KIND:]

    def _decoded(self, kind: SampleKind, step: int, group: ScoredAnswers) -> SampleGroup:
        each = zip(group.answers, group.rewards, group.advantages, strict=True)
        made = SampleGroup(
            step=step,
            kind=kind,
            environment=group.environment,
            version=group.version,
            prompt=self._text(group.prompt),
            answers=tuple(Answer(text=self._text(a), reward=r, advantage=v) for a, r, v in each),
        )
        return samples_of([made])[0]

    def _text(self, tokens: Iterable[int]) -> str:
        return self.decode([int(token) for token in tokens])


class Recorder:
    """`file` None keeps nothing on disk. A disk that is full never stops a run."""

    def __init__(self, file: Path | None = None, run: str = "") -> None:
        self._file, self._run = file, run
        self._curve = Curve()
        self._evaluations: tuple[Evaluation, ...] = ()
        self._has_warned = False
        self._has_whole_lines = False  # else an earlier process may have ended within one
        self.samples = Samples(decode=lambda _: "")

    def resume(self, step: int) -> None:
        """From the file: the steps up to this one, which the training goes on from."""
        for at, figures in self._lines():
            if at <= step:
                self._curve.add(at, recorded(figures))

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        self._curve.add(step, recorded(figures))
        if self._file is None:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = msgspec.json.encode({"run": self._run, "step": step, "time": now, **figures})
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(b"" if self._has_whole_lines else b"\n")
                file.write(line + b"\n")
            self._has_whole_lines = True
        except OSError as error:
            if not self._has_warned:
                log.warning("%s cannot be written, so steps are missing in it: %s", self._file, error)
            self._has_warned = True

    def evaluated(self, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
        """Keeps them, and returns those that are new."""
        new = [each for each in evaluations if each not in self._evaluations]
        self._evaluations = evaluations_of((*self._evaluations, *new))
        return new

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        return self._evaluations

    def history(self) -> History:
        """Everything, for a reader that keeps it."""
        return History(
            series=series_of(self._curve.points), samples=self.samples.groups(), evaluations=self._evaluations
        )

    def _lines(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Of this run alone: a volume may have been used by others before. A line that is torn is skipped."""
        if self._file is None or not self._file.exists():
            return
        with self._file.open("rb") as file:
            for line in file:
                try:
                    known = untrusted.decode(line, _Line)
                    body = untrusted.decode(line, dict[str, Any])
                except msgspec.MsgspecError:
                    continue
                if known.run == self._run:
                    yield known.step, {name: value for name, value in body.items() if isinstance(value, float | int)}


def _mean(group: ScoredAnswers) -> float:
    return group.mean_reward
