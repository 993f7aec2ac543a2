"""Small models of families that the fast engine does not support, and what they sample."""

import asyncio
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from clotho_contract.trajectory import NO_LOGPROB, ScoredGroup
from clotho_trainer.inference.core.engine import Completion, Request, Sampling
from clotho_trainer.model.tiny import make_tokenizer
from clotho_trainer.training.local.backend import LocalBackend

_WINDOW = 8
_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
_GEMMA = {
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": _WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
}
_EYES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": _WINDOW, "head_dim": 8},
    "gemma3_text": _GEMMA,
    "gemma3": {"vision_config": _EYES, "mm_tokens_per_image": 4},  # around gemma3_text
    "gpt_oss": {
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": _WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "qwen3_moe": {"head_dim": 8, **_EXPERTS},
    "qwen3_next": {"head_dim": 8, "shared_expert_intermediate_size": 16, **_EXPERTS, **_LINEAR},
    "qwen3_5_text": {"head_dim": 8, **_LINEAR},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
}


def saved(architecture: str, folder: Path) -> Path:
    """A random model of that family, as a hub would have it."""
    tokenizer, extra = make_tokenizer(), ARCHITECTURES[architecture]
    size = len(tokenizer)
    if architecture == "gemma3":
        special = {f"{name}_token_index": size - 1 - index for index, name in enumerate(("image", "boi", "eoi"))}
        settings = {"text_config": {**_SMALL, **_GEMMA, "vocab_size": size}, **extra, **special}
    else:
        settings = {**_SMALL, **extra, "vocab_size": size}
    torch.manual_seed(0)
    made: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **settings), dtype=torch.float32)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


async def sampled(policy: LocalBackend) -> list[tuple[tuple[int, ...], list[Completion]]]:
    """Prompts and answers within and beyond the window, of which some join and leave while others are written."""
    prompts = [tuple(5 + place * 7 % 50 for place in range(length)) for length in (2, 19, 14, 14, 30)]

    async def ask(place: int, prompt: tuple[int, ...]) -> list[Completion]:
        for _ in range(place):
            await policy.engine.generate(Request((7,), Sampling(max_tokens=2, ignore_end=True)))
        return await policy.engine.generate(Request(prompt, Sampling(max_tokens=9 + 5 * place, ignore_end=True), n=3))

    answers = await asyncio.gather(*(ask(place, prompt) for place, prompt in enumerate(prompts)))
    return list(zip(prompts, answers, strict=True))


def scored(answers: list[tuple[tuple[int, ...], list[Completion]]]) -> list[ScoredGroup]:
    return [
        ScoredGroup(
            tokens=[[*prompt, *each.tokens] for each in completions],
            masks=[[-100] * len(prompt) + list(each.tokens) for each in completions],
            scores=[1.0, 0.0, 0.5],
            inference_logprobs=[[NO_LOGPROB] * len(prompt) + list(each.logprobs) for each in completions],
        )
        for prompt, completions in answers
    ]
