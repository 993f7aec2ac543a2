"""What can be known to be wrong before anything heavy is loaded."""

import logging
from dataclasses import dataclass

from msgspec import structs

from clotho_contract.config import RunConfig
from clotho_contract.inline import NO_REWARD, Inline, problems
from clotho_contract.trajectory import batch_size_problem
from clotho_trainer.failures import TrainerError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Given:
    """What comes from Python, beside the config."""

    rewards: bool = False
    tools: bool = False
    dataset: bool = False


def checked(config: RunConfig, given: Given | None = None, ranks: int = 1) -> RunConfig:
    """The config as it is trained; raises what is wrong with it, notes what is adjusted."""
    if ranks > 1:
        _check_ranks(config, ranks)
    if config.sharding != "none":
        _check_sharding(config, ranks)
    if config.inline is not None:
        _check_inline(config, config.inline, given or Given())
        config = _fit_batch(config, config.inline)
    check(config)
    return config


def check(config: RunConfig) -> None:
    training = config.training
    _check_vllm(config)
    if config.inference.kv_cache_dtype == "fp8" and config.inference.engine not in {"auto", "fast"}:
        raise TrainerError("InvalidConfig", "inference.kvCacheDtype fp8 needs inference.engine auto or fast")
    for environment in config.environments:
        if problem := batch_size_problem(training.batch_size, environment.group_size, environment.name):
            raise TrainerError("InvalidConfig", problem)
    uneven = training.micro_batch_size and training.batch_size % training.micro_batch_size
    if uneven and config.inline is None:
        raise TrainerError(
            "InvalidConfig",
            f"training.microBatchSize: {training.micro_batch_size} does not divide batchSize {training.batch_size}; "
            "use a divisor, or 0 to let the trainer choose",
        )
    quantization = config.model.quantization
    if quantization != "none" and training.lora.rank == 0:
        raise TrainerError(
            "InvalidConfig", f"model.quantization {quantization} trains adapters only: set training.lora.rank above 0"
        )


def check_replica(config: RunConfig) -> None:
    """What an inference replica needs, beyond what the trainer has checked."""
    if not config.endpoints.policy:
        raise TrainerError(
            "InvalidConfig", "endpoints.policy is empty; it is the base URL of the trainer's policy port"
        )
    if config.training.backend == "tinker":
        raise TrainerError("InvalidConfig", "inference.replicas: the Tinker service serves the policy itself")
    if config.inference.engine == "vllm" and config.inference.vllm.mode == "server":
        raise TrainerError(
            "InvalidConfig", "inference.replicas start a vLLM of their own: inference.vllm.mode must be colocate"
        )


def _check_inline(config: RunConfig, inline: Inline, given: Given) -> None:
    if config.environments:
        raise TrainerError("InvalidConfig", "a run has either environments or inline, not both")
    for problem in problems(inline):
        if not (problem == NO_REWARD and given.rewards):
            raise TrainerError("InvalidConfig", problem)
    if config.training.world_model.coefficient and inline.tools is None and not given.tools:
        raise TrainerError(
            "InvalidConfig",
            "training.worldModel.coefficient: without inline.tools there are no tool results to learn from; "
            "give tools, or set it to 0",
        )
    if inline.max_completion_tokens >= config.training.max_tokens:
        raise TrainerError(
            "InvalidConfig",
            f"inline.maxCompletionTokens: {inline.max_completion_tokens} leaves no room for a prompt; "
            f"it must be below training.maxTokens {config.training.max_tokens}",
        )


def _check_ranks(config: RunConfig, ranks: int) -> None:
    one = "give the trainer one rank: trainer.replicas 1 and at most one GPU"
    if config.inline is not None:
        raise TrainerError("InvalidConfig", f"a run with inline samples on one rank and has {ranks}; {one}")
    if config.training.backend == "tinker":
        raise TrainerError(
            "InvalidConfig", f"training.backend tinker trains elsewhere and needs no {ranks} ranks; {one}"
        )
    if config.inference.engine == "vllm" and config.sharding == "none":
        raise TrainerError(
            "InvalidConfig", f"inference.engine vllm serves one rank, and the trainer has {ranks}; use auto, or {one}"
        )


def _check_sharding(config: RunConfig, ranks: int) -> None:
    """As the operator refuses them; but a config may be written by hand."""
    if ranks == 1:
        raise TrainerError("InvalidConfig", "sharding fsdp spreads the model over ranks, and this trainer has one")
    if config.model.quantization != "none":
        raise TrainerError(
            "InvalidConfig",
            f"sharding fsdp cannot spread weights of model.quantization {config.model.quantization}: use none",
        )


def _check_vllm(config: RunConfig) -> None:
    vllm = config.inference.vllm
    if config.inference.engine != "vllm":
        return
    if vllm.mode == "server" and not (vllm.url and vllm.adapter_path):
        raise TrainerError(
            "InvalidConfig",
            "inference.vllm: the mode server needs url, and adapterPath on a volume that the server mounts too",
        )
    if vllm.mode == "server" and config.training.lora.rank == 0:
        raise TrainerError(
            "InvalidConfig",
            "inference.vllm.mode server serves adapters only: set training.lora.rank above 0, or use the mode colocate",
        )
    if vllm.mode == "server" and vllm.tensor_parallel > 1:
        raise TrainerError(
            "InvalidConfig", "inference.vllm.tensorParallel: a server decides that itself; set it in mode colocate only"
        )
    if vllm.mode == "colocate" and (vllm.url or vllm.adapter_path):
        raise TrainerError("InvalidConfig", "inference.vllm: url and adapterPath belong to the mode server")


def _fit_batch(config: RunConfig, inline: Inline) -> RunConfig:
    training = config.training
    size = -(-training.batch_size // inline.group_size) * inline.group_size
    if size == training.batch_size:
        return config
    log.warning(
        "training.batchSize is raised from %d to %d, so that it holds whole groups of %d",
        training.batch_size,
        size,
        inline.group_size,
    )
    return structs.replace(config, training=structs.replace(training, batch_size=size))
