"""Which engine serves the policy of a run."""

from pathlib import Path

from clotho_contract.config import RunConfig
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.engine import Engine
from clotho_trainer.inference.transformers_engine import TransformersEngine
from clotho_trainer.inference.vllm_engine import VllmEngine
from clotho_trainer.live import LiveWeights
from clotho_trainer.policy import context_length


def choose_engine(config: RunConfig, live: LiveWeights, end_tokens: frozenset[int], work: Path) -> Engine:
    context = context_length(live.model)
    if config.inference.engine == "vllm":
        if config.training.lora.rank == 0:
            raise TrainerError(
                "InvalidConfig", "inference.engine vllm is fed with adapters: set training.lora.rank, or use auto"
            )
        return VllmEngine(config, live, work / "vllm", min(context, config.training.max_tokens))
    return TransformersEngine(
        live, end_tokens, context=context, max_rows=config.inference.max_batch_size, seed=config.training.seed
    )
