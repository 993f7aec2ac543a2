"""Which engine serves the policy of a run."""

import logging
from pathlib import Path

import torch

from clotho_contract.config import RunConfig
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import Engine
from clotho_trainer.inference.elsewhere import ElsewhereEngine
from clotho_trainer.inference.paged import memory
from clotho_trainer.inference.paged.cache import BLOCK_SIZE, CacheShape, bytes_per_token
from clotho_trainer.inference.paged.engine import FastEngine
from clotho_trainer.inference.paged.weights import PolicyWeights
from clotho_trainer.inference.transformers.engine import TransformersEngine
from clotho_trainer.inference.vllm.engine import VllmEngine
from clotho_trainer.model.architecture import trainable_parameters, unsupported_reason
from clotho_trainer.model.fp8 import incapable_gpu
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.model.load import context_length

log = logging.getLogger(__name__)

_CPU_MEMORY = 4 * 2**30  # of which the cache takes its share where there is no GPU


def choose_engine(
    config: RunConfig, live: LiveWeights, end_tokens: frozenset[int], work: Path, rank: int = 0
) -> Engine:
    context = context_length(live.model)
    uses_vllm = config.inference.engine == "vllm"
    if config.sharding != "none" and not (uses_vllm and config.inference.vllm.mode == "server" and rank == 0):
        return ElsewhereEngine()
    if uses_vllm:
        return VllmEngine(config, live, work / "vllm", min(context, config.training.max_tokens))
    if _uses_fast_engine(config, live):
        return _fast_engine(config, live, end_tokens, context)
    log.info("the transformers engine serves %s", config.model.name)
    return TransformersEngine(
        live,
        end_tokens,
        context=context,
        max_rows=config.decoded_together,
        seed=config.training.seed,
        drains=config.inference.weight_updates == "drained",
    )


def _uses_fast_engine(config: RunConfig, live: LiveWeights) -> bool:
    engine = config.inference.engine
    caches_in_fp8 = config.inference.kv_cache_dtype == "fp8"
    if engine == "auto" and live.device.type != "cuda" and caches_in_fp8:
        raise TrainerError(
            "InvalidConfig", "inference.kvCacheDtype fp8 needs inference.engine fast where there is no GPU"
        )
    if engine == "transformers" or (engine == "auto" and live.device.type != "cuda"):
        return False
    problem = unsupported_reason(live.model)
    if problem is None:
        return True
    if engine == "fast":
        raise TrainerError("InvalidConfig", f"inference.engine fast cannot serve {config.model.name}: {problem}")
    if caches_in_fp8:
        raise TrainerError(
            "InvalidConfig",
            f"inference.kvCacheDtype fp8 needs the fast engine, which cannot serve {config.model.name}: {problem}",
        )
    log.info("the fast engine cannot serve %s: %s", config.model.name, problem)
    return False


def _fast_engine(config: RunConfig, live: LiveWeights, end_tokens: frozenset[int], context: int) -> FastEngine:
    rows = config.decoded_together
    in_fp8 = config.inference.kv_cache_dtype == "fp8"
    if in_fp8 and live.device.type == "cuda" and (name := incapable_gpu()):
        raise TrainerError(
            "InvalidConfig", f"inference.kvCacheDtype fp8 needs a GPU of Hopper or newer; this is a {name}"
        )
    weights = PolicyWeights(live.model, context)
    total, used = _memory(live.device)
    budget = memory.divide(
        total=total,
        used=used,
        trainable=trainable_parameters(live.model),
        bytes_per_token=bytes_per_token(weights, in_fp8=in_fp8),
        rows=rows,
        tokens_a_row=min(context, config.training.max_tokens),
        block_size=BLOCK_SIZE,
    )
    log.info("the fast engine serves %s; memory %s", config.model.name, budget)
    return FastEngine(
        live,
        weights,
        end_tokens,
        CacheShape(budget.blocks, in_fp8=in_fp8),
        max_rows=rows,
        seed=config.training.seed,
        drains=config.inference.weight_updates == "drained",
    )


def _memory(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda":
        return _CPU_MEMORY, 0
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total, total - free
