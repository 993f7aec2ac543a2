"""Which of the pod's GPUs does what: each rank trains on its own, a colocated vLLM may spread over several."""

import os

from clotho_trainer.failures import TrainerError

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_given: list[str] = []  # from the environment of the pod; empty when it is not set


def train_on(local_rank: int) -> None:
    """One process trains on one GPU; seeing several would make torch spread over them."""
    if not _given and _VARIABLE in os.environ:
        _given.extend(os.environ[_VARIABLE].split(","))
    os.environ[_VARIABLE] = _given[local_rank % len(_given)] if _given else str(local_rank)


def first(count: int) -> str:
    """The first `count` GPUs, for a process of their own."""
    if _given and count > len(_given):
        raise TrainerError(
            "InvalidConfig", f"inference.vllm.tensorParallel: {count} GPUs are asked for, the pod has {len(_given)}"
        )
    return ",".join(_given[:count] or map(str, range(count)))
