"""The CEL rules once more in Python, for objects that got past them (an older CRD) and for tools without a cluster."""

import re
from collections.abc import Iterator

from clotho.api.rules import (
    CISPO_RANGE,
    FP8_CACHE,
    INLINE_RANKS,
    INLINE_REPLICAS,
    QUANTIZED_REPLICAS,
    REPLICA_GPUS,
    SERVER_REPLICAS,
    SERVER_WEIGHTS,
    SHARDED_DTYPE,
    SHARDED_INFERENCE,
    SHARDED_QUANTIZATION,
    SHARDED_RANKS,
    TINKER_RANKS,
    TINKER_REPLICAS,
    VLLM_RANKS,
)
from clotho.api.training_run import EnvironmentSpec, InlineSpec, TrainingRunSpec
from clotho_contract.inline import problems as inline_problems
from clotho_contract.settings import Loss
from clotho_contract.trajectory import batch_size_problem

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def problems(name: str, spec: TrainingRunSpec) -> tuple[str, ...]:
    """Everything that is wrong, at once: each names the field, the value and what is allowed."""
    return tuple(_problems(name, spec))


def _problems(name: str, spec: TrainingRunSpec) -> Iterator[str]:
    if len(name) > 63 or not _NAME.fullmatch(name):
        yield "metadata.name: at most 63 lower-case letters, digits and hyphens, a letter first: part of host names"
    yield from _batch_problems(spec)
    yield from _environment_problems(spec)
    if bool(spec.environments) == spec.is_inline:
        yield "a run has either environments or inline, and not both"
    if spec.inline is not None:
        yield from _inline_problems(spec.inline)
        if spec.inline.tools is None and spec.training.world_model.coefficient:
            yield "training.worldModel needs inline.tools: without tools only the policy writes tokens"
    if spec.training.backend == "tinker" and not spec.trainer.tinker_secret_name:
        yield "trainer.tinkerSecretName is needed by training.backend tinker: the Secret with TINKER_API_KEY"
    yield from _rank_problems(spec)
    yield from _sharding_problems(spec)
    yield from _replica_problems(spec)
    quantization = spec.model.quantization
    if quantization != "none" and (spec.trainer.gpus < 1 or spec.training.lora.rank < 1):
        yield f"model.quantization {quantization} needs trainer.gpus of at least 1 and training.lora.rank of at least 1"
    if spec.inference.kv_cache_dtype == "fp8" and spec.inference.engine not in {"auto", "fast"}:
        yield FP8_CACHE
    yield from _loss_problems(spec.training.loss)
    if spec.export is not None and spec.storage.ephemeral:
        yield "export needs storage that lasts: storage.ephemeral must be false"
    if spec.export is not None and spec.export.ollama is not None and "gguf" not in spec.export.formats:
        yield "export.ollama needs the format gguf"
    if spec.storage.ephemeral and spec.storage.claim_name:
        yield "storage.claimName and storage.ephemeral exclude each other"
    if spec.storage.resume_from and spec.storage.s3 is None:
        yield "storage.resumeFrom needs storage.s3, for its endpoint and credentials"
    wandb = spec.tracking.wandb
    if wandb is not None and wandb.mode == "online" and not wandb.secret_name:
        yield (
            "tracking.wandb.secretName is needed in mode online: the Secret with WANDB_API_KEY; or set mode to offline"
        )


def _loss_problems(loss: Loss) -> Iterator[str]:
    if loss.epsilon_high is None:
        return
    if loss.epsilon_high <= 0:
        yield "training.loss.epsilonHigh must be greater than 0"
    elif loss.type == "cispo" and loss.epsilon_high < 1:
        yield CISPO_RANGE


def _rank_problems(spec: TrainingRunSpec) -> Iterator[str]:
    replicas, gpus = spec.trainer.replicas, spec.trainer.gpus
    if replicas == 1 and gpus <= 1:
        return
    if spec.training.backend == "tinker":
        yield TINKER_RANKS
    if spec.is_inline:
        yield INLINE_RANKS
    colocates = spec.inference.engine == "vllm" and spec.trainer.sharding == "none"
    if colocates and (replicas > 1 or gpus > spec.inference.vllm.tensor_parallel):
        yield VLLM_RANKS


def _sharding_problems(spec: TrainingRunSpec) -> Iterator[str]:
    if spec.trainer.sharding == "none":
        return
    if spec.topology.size == 1:
        yield SHARDED_RANKS
    has_server = spec.inference.engine == "vllm" and spec.inference.vllm.mode == "server"
    if not (spec.inference.replicas or has_server):
        yield SHARDED_INFERENCE
    if spec.model.quantization != "none":
        yield SHARDED_QUANTIZATION
    if spec.model.dtype == "float16":
        yield SHARDED_DTYPE


def _replica_problems(spec: TrainingRunSpec) -> Iterator[str]:
    inference = spec.inference
    is_vllm = inference.engine == "vllm"
    if is_vllm and inference.vllm.mode == "server" and spec.training.lora.rank == 0:
        yield SERVER_WEIGHTS
    if inference.replicas:
        if spec.training.backend == "tinker":
            yield TINKER_REPLICAS
        if spec.is_inline:
            yield INLINE_REPLICAS
        if is_vllm and inference.vllm.mode == "server":
            yield SERVER_REPLICAS
    if inference.gpus is None:
        return
    if inference.gpus != inference.vllm.tensor_parallel if is_vllm else inference.gpus > 1:
        yield REPLICA_GPUS
    if spec.model.quantization != "none" and not inference.gpus:
        yield QUANTIZED_REPLICAS


def _environment_problems(spec: TrainingRunSpec) -> Iterator[str]:
    names = [environment.name for environment in spec.environments]
    for repeated in sorted({each for each in names if names.count(each) > 1}):
        yield f"environments: {repeated} appears more than once"
    if sum(environment.min_batch_allocation or 0.0 for environment in spec.environments) > 1.0:
        yield "environments: the minBatchAllocation of all must not add up to more than 1"
    for each in spec.environments:
        if each.autoscaling is not None and each.autoscaling.max < each.replicas:
            most = f"environments.{each.name}.autoscaling.max: {each.autoscaling.max}"
            yield f"{most} is less than replicas {each.replicas}, the fewest pods"


def _inline_problems(inline: InlineSpec) -> Iterator[str]:
    yield from inline_problems(inline)
    for where, source in (("dataset", inline.dataset), ("code", inline.code)):
        if source.config_map_name and source.claim_name:
            yield f"inline.{where}: configMapName and claimName exclude each other"


def _batch_problems(spec: TrainingRunSpec) -> Iterator[str]:
    batch, micro = spec.training.batch_size, spec.training.micro_batch_size
    if micro and batch % micro:
        yield f"training.microBatchSize: {micro} does not divide batchSize {batch}; use 0 to let the trainer choose"
    for environment in spec.environments:
        if problem := _group_problem(batch, environment):
            yield problem


def _group_problem(batch: int, environment: EnvironmentSpec) -> str | None:
    if environment.environment_name and "group_size" not in environment.config:
        return None  # the Environment's own, which is checked once it is known
    given = environment.config.get("group_size", environment.group_size)
    if given != environment.group_size or given < 1:
        return f"environments.{environment.name}.config.group_size: {given!r} is not a number of at least 1"
    return batch_size_problem(batch, environment.group_size, environment.name)
