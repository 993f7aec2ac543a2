"""The learning rate as a pure function of the step, so that a resumed or prolonged run needs no scheduler state."""

import math

from clotho_contract.settings import Training


def learning_rate(training: Training, step: int) -> float:
    """For the update that makes `step` into `step + 1`."""
    return training.learning_rate * _factor(training.scheduler, step, training.warmup_steps, training.steps)


def _factor(kind: str, step: int, warmup: int, total: int) -> float:
    if kind != "constant" and step < warmup:
        return (step + 1) / (warmup + 1)
    remaining = min(max((step - warmup) / max(total - warmup, 1), 0.0), 1.0)
    if kind == "linear":
        return 1.0 - remaining
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * remaining))
    return 1.0
