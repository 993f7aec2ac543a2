"""How a step is cut into passes through the model: compiled or not, activations kept or recomputed, how many tokens."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clotho_trainer.model.architecture import base_model

log = logging.getLogger(__name__)

TOKENS = 17_408  # a pass, where the config leaves the micro-batch to us; half of it is 16 answers of 512, and a prompt
_FEWEST_KEPT = 4_096  # below this many tokens a pass, keeping costs more than recomputing
_RESERVE = 6 * 2**30  # for logits, gradients and what the allocator cannot use
_PROBE_TOKENS = 256


@dataclass(frozen=True)
class Plan:
    keeps_activations: bool
    tokens: int


def plan(*, fixed_tokens: int | None, kept_bytes_per_token: float, free: int) -> Plan:
    """Keep when it fits. `fixed_tokens`: the config sets the size of a pass, so only that is tried."""
    sizes = (
        [fixed_tokens] if fixed_tokens else [TOKENS >> shift for shift in range(3) if TOKENS >> shift >= _FEWEST_KEPT]
    )
    for tokens in sizes:
        if kept_bytes_per_token * tokens <= free - _RESERVE:
            return Plan(keeps_activations=True, tokens=tokens)
    return Plan(keeps_activations=False, tokens=sizes[0])


def kept_bytes_per_token(model: Any, autocast: Callable[[], Any]) -> float:
    """Measured with a small forward pass; compiled layers keep somewhat less."""
    inner = base_model(model)
    ids = torch.zeros(1, _PROBE_TOKENS, dtype=torch.long, device=model.device)
    before = torch.cuda.memory_allocated()
    with autocast():
        hidden = inner.model(input_ids=ids, use_cache=False).last_hidden_state
    kept = torch.cuda.memory_allocated() - before
    del hidden
    return kept / _PROBE_TOKENS


def free_memory(promised_share: float = 0.0) -> int:
    """What the allocator holds unused counts as free; the share of the GPU that others will take does not."""
    free, total = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() - promised_share * total)


def keep_compiled(folder: Path) -> None:
    """What is compiled is kept on the volume, so that a restart does not compile again."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(folder / "flash-attention"))
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # its default; Triton warns of a change to come if unset


def compile_layers(model: Any) -> None:
    """All layers share one compiled program for each kind of shape; the first shape is compiled on its own, the second
    for every length."""
    dynamo: Any = torch._dynamo.config
    dynamo.recompile_limit = 64  # passes with and without adapters, with and without gradients
    for layer in base_model(model).get_decoder().layers:
        layer.compile()
    log.info("the first steps compile the layers and take up to a minute longer, but not after a restart")
