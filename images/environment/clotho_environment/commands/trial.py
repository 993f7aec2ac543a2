"""The results of a test of an environment: counts by score, two samples, and the end of its output."""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from clotho_contract.logs import without
from clotho_contract.termination import Sample, Termination, Trial
from clotho_contract.untrusted import decode

log = logging.getLogger(__name__)

OUTPUT_LIMIT: Final = 1500
SAMPLES: Final = 2
SAMPLE_LIMIT: Final = 240  # characters of a prompt and of an answer
STEPS_KEPT: Final = 16  # groups whose scores are reported one by one
SCORES_KEPT: Final = 16  # of each of them
_LINES: Final = 12


class _Line(Struct):
    """A group as it is written, by our own environments and by those of Atropos; only the scores must be there."""

    scores: list[float]
    prompts: Any = None
    texts: Any = None
    messages: Any = None  # Atropos: a conversation for each attempt

    def sample(self) -> Sample | None:
        """The first attempt, where its texts are known."""
        match self:
            case _Line(scores=[score, *_], prompts=[str(prompt), *_], texts=[str(answer), *_]):
                return Sample(prompt=prompt, answer=answer, score=score)
            case _Line(scores=[score, *_], messages=[[*_, {"content": str(prompt)}, {"content": str(answer)}], *_]):
                return Sample(prompt=prompt, answer=answer, score=score)
        return None


class Tally(logging.Handler):
    """Counts every group and keeps the last log lines; `secret` is removed from them."""

    def __init__(self, write_line: Callable[[bytes], object], secret: str) -> None:
        super().__init__(logging.INFO)
        self._write_line = write_line
        self._secrets = [secret] if secret else []
        self._tail: deque[str] = deque(maxlen=_LINES)
        self.trial = Trial()

    def write(self, line: bytes) -> None:
        self._write_line(line)
        try:
            group = decode(line, _Line)
        except msgspec.MsgspecError as error:
            log.warning("a group cannot be counted: %s", error)
            return
        correct = sum(score > 0 for score in group.scores)
        before = self.trial
        self.trial = Trial(
            steps_tested=before.steps_tested + 1,
            completions=before.completions + len(group.scores),
            correct=before.correct + correct,
            steps_with_correct=before.steps_with_correct + (correct > 0),
            samples=(*before.samples, *self._excerpts(group))[:SAMPLES],
            scores=(*before.scores, _shown(group.scores))[:STEPS_KEPT],
        )

    def _excerpts(self, group: _Line) -> Iterator[Sample]:
        if (sample := group.sample()) is not None:
            prompt, answer = (without(self._secrets, text) for text in (sample.prompt, sample.answer))
            yield Sample(prompt=prompt[-SAMPLE_LIMIT:], answer=answer[:SAMPLE_LIMIT], score=sample.score)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        self._tail.append(text)

    def add_to(self, ending: Termination) -> Termination:
        is_good = ending.reason == "Finished"
        output = "" if is_good else without(self._secrets, "\n".join(self._tail))[-OUTPUT_LIMIT:]
        trial = msgspec.structs.replace(self.trial, output=output)
        return msgspec.structs.replace(ending, message=without(self._secrets, ending.message), trial=trial)


def _shown(scores: list[float]) -> tuple[float, ...]:
    return tuple(round(score, 3) for score in scores[:SCORES_KEPT] if math.isfinite(score))


def give_up_after(seconds: float, leave: Callable[[], object]) -> None:
    """For code that blocks the event loop, where no asynchronous deadline can be noticed."""
    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
