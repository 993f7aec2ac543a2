"""Every way in which training can fail, as one sentence and a reason that the operator acts on."""

from clotho_contract.config import ConfigError
from clotho_contract.termination import PERMANENT, Reason, Termination

_PERMANENT_EXIT = 2


class TrainerError(Exception):
    """A failure whose cause is known: the message is shown to the user."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message


def is_out_of_memory(error: BaseException) -> bool:
    """By name and message, so that deciding it needs no torch: on a CPU it raises a plain RuntimeError."""
    is_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError) or is_cpu


def model_too_large(model: str, error: BaseException) -> TrainerError:
    """Out of memory before the first step: loading again would end in the same way."""
    return TrainerError(
        "ModelTooLarge",
        f"{model} does not fit into memory: {_first_line(error)}; use a GPU (or a memory limit) with more memory, "
        "a smaller model, model.quantization nf4, trainer.sharding fsdp, or lower inference.maxBatchSize",
    )


def classify(error: BaseException, step: int | None) -> Termination:
    if isinstance(error, TrainerError):
        return Termination(reason=error.reason, message=error.message, step=step)
    if isinstance(error, ConfigError):
        return Termination(reason="InvalidConfig", message=str(error), step=step)
    if is_out_of_memory(error):
        advice = "lower training.microBatchSize, training.maxTokens or inference.maxBatchSize, or use a larger GPU"
        return Termination(reason="OutOfMemory", message=f"{_first_line(error)}; {advice}", step=step)
    return Termination(reason="InternalError", message=f"{type(error).__name__}: {_first_line(error)}", step=step)


def exit_code(termination: Termination) -> int:
    if termination.reason in ("Finished", "Stopped"):
        return 0
    return _PERMANENT_EXIT if termination.reason in PERMANENT else 1


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
