"""Tiny policies of each architecture that the fast engine supports, with an adapter that is not zero, and the
results of the Hugging Face modules."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from clotho_trainer.inference.core.engine import Completion
from clotho_trainer.inference.paged.cache import CacheShape
from clotho_trainer.inference.paged.engine import FastEngine
from clotho_trainer.inference.paged.weights import PolicyWeights
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.model.tiny import make_tokenizer

CONTEXT = 96
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 16},
    "qwen2": {},  # biases on queries, keys and values
    "llama": {"attention_bias": True, "mlp_bias": True, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    "mistral": {"sliding_window": None, "head_dim": 32},
}


def policy(architecture: str, *, adapts: str | list[str] | None = "all-linear", rank: int = 4) -> LiveWeights:
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    extra = dict(ARCHITECTURES[architecture])
    if rope := extra.pop("rope_parameters", None):
        extra["rope_parameters"] = {"rope_theta": 10_000.0} | rope
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        tie_word_embeddings=False,
        **extra,
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if adapts is not None:
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=8, target_modules=adapts, task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "bias" in name or "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.1)
    return LiveWeights(model, tokenizer)


def engine(
    live: LiveWeights,
    *,
    blocks: int = 64,
    rows: int = 16,
    block_size: int = 16,
    drains: bool = False,
    cache_in_fp8: bool = False,
) -> FastEngine:
    weights = PolicyWeights(live.model, CONTEXT)
    ends = frozenset({live.tokenizer.eos_token_id})
    cache = CacheShape(blocks, block_size, in_fp8=cache_in_fp8)
    return FastEngine(live, weights, ends, cache, max_rows=rows, drains=drains)


def reference_logprobs(
    live: LiveWeights, prompt: tuple[int, ...], completion: Completion, temperature: float
) -> list[float]:
    ids = torch.tensor([[*prompt, *completion.tokens]], device=live.device)
    with live.training(), torch.no_grad():
        logits = live.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / (temperature or 1.0)
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None]).squeeze(-1).tolist()


def greedy(live: LiveWeights, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    tokens: list[int] = []
    with live.training(), torch.no_grad():
        for _ in range(count):
            logits = live.model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, -1]
            tokens.append(int(logits.argmax()))
    return tuple(tokens)


def nudge(live: LiveWeights) -> None:
    """What an optimiser step does: other adapters (or weights), the next version."""
    with live.training(), torch.no_grad():
        for parameter in live.model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
        live.version += 1
