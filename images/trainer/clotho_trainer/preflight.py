"""What can be known to be wrong before anything heavy is loaded."""

from clotho_contract.config import RunConfig
from clotho_trainer.failures import TrainerError


def check(config: RunConfig) -> None:
    training = config.training
    for environment in config.environments:
        size = environment.group_size
        if training.batch_size % size:
            below = training.batch_size // size * size
            better = f"{below} or {below + size}" if below else str(size)
            raise TrainerError(
                "InvalidConfig",
                f"training.batchSize: {training.batch_size} is not a multiple of group_size {size} "
                f"(environment {environment.name}); use {better}",
            )
    if training.micro_batch_size and training.batch_size % training.micro_batch_size:
        raise TrainerError(
            "InvalidConfig",
            f"training.microBatchSize: {training.micro_batch_size} does not divide batchSize {training.batch_size}; "
            "use a divisor, or 0 to let the trainer choose",
        )
    if config.model.quantization != "none" and training.lora.rank == 0:
        raise TrainerError(
            "InvalidConfig", "model.quantization nf4 trains adapters only: set training.lora.rank above 0"
        )
