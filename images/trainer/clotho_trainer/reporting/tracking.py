"""The seam behind which figures, sample completions and evaluations are sent to trackers, each in a file of its own."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from clotho_contract.history import Evaluation

Sample = tuple[str, str, float]
"""Prompt, completion, score."""


class Tracker(Protocol):
    @property
    def url(self) -> str | None: ...

    def log(self, step: int, figures: Mapping[str, float], samples: Sequence[Sample]) -> None: ...

    def wants_samples(self, step: int) -> bool: ...

    def log_evaluation(self, evaluation: Evaluation) -> None: ...

    def finish(self, exit_code: int) -> None: ...


class Several:
    """Each gets everything."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    @property
    def url(self) -> str | None:
        return next((each.url for each in self._trackers if each.url), None)

    def wants_samples(self, step: int) -> bool:
        return any(each.wants_samples(step) for each in self._trackers)

    def log(self, step: int, figures: Mapping[str, float], samples: Sequence[Sample]) -> None:
        for each in self._trackers:
            each.log(step, figures, samples)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        for each in self._trackers:
            each.log_evaluation(evaluation)

    def finish(self, exit_code: int) -> None:
        for each in self._trackers:
            each.finish(exit_code)


def evaluated(evaluation: Evaluation) -> dict[str, float]:
    """The figures of an evaluation under names that no figure of a step has."""
    return {f"evaluation/{evaluation.environment}/{name}": value for name, value in evaluation.figures.items()}
