"""Which of the pod's GPUs does what: training takes the first, a colocated vLLM may spread over several."""

import logging
import os

from clotho_trainer.failures import TrainerError

log = logging.getLogger(__name__)

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_given: list[str] = []  # from the environment of the pod; empty when it is not set


def train_on_first() -> None:
    """One process trains on one GPU; seeing several would make torch spread over them."""
    if not _given and _VARIABLE in os.environ:
        _given.extend(os.environ[_VARIABLE].split(","))
    if len(_given) > 1:
        log.warning("%d GPUs are visible and training uses one", len(_given))
    os.environ[_VARIABLE] = _given[0] if _given else "0"


def first(count: int) -> str:
    """The first `count` GPUs, for a process of their own."""
    if _given and count > len(_given):
        raise TrainerError(
            "InvalidConfig", f"inference.vllm.tensorParallel: {count} GPUs are asked for, the pod has {len(_given)}"
        )
    return ",".join(_given[:count] or map(str, range(count)))
