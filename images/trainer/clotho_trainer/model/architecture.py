"""Model families: the model below its adapters, and which families the paged engine and packed training support."""

from typing import Any

import torch

from clotho_trainer.failures import TrainerError
from clotho_trainer.model import fp8, nf4
from clotho_trainer.model.fp8 import Fp8Linear
from clotho_trainer.model.lora import plain_adapter

SUPPORTED = frozenset({"qwen2", "qwen3", "llama", "mistral"})
_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})  # the others depend on the length of the sequence


def base_model(model: Any) -> Any:
    """The Hugging Face model itself, whether PEFT has wrapped it or not."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def trainable_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def recomputable_layers(model: Any) -> list[Any]:
    """Those of the text part that can compute their activations again, in the order of the forward pass."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    decoder = base_model(model).get_decoder()
    return [module for module in decoder.modules() if isinstance(module, GradientCheckpointingLayer)]


def is_saved_as_named(model: Any) -> bool:
    """Whether a checkpoint has the model's parameters as they are, or under other names and cut otherwise (experts)."""
    from transformers.core_model_loading import revert_weight_conversion

    held = {name: torch.empty_like(each, device="meta") for name, each in model.named_parameters()}
    saved = revert_weight_conversion(model, dict(held))
    return {name: each.shape for name, each in saved.items()} == {name: each.shape for name, each in held.items()}


def unsupported_reason(model: Any) -> str | None:
    """Why this model has no paged decoding and no packed training; None when it has both."""
    inner = base_model(model)
    config = inner.config
    if config.model_type not in SUPPORTED:
        return f"the architecture {config.model_type} is not among {', '.join(sorted(SUPPORTED))}"
    context = config.max_position_embeddings
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()) or (
        config.model_type == "mistral" and (config.sliding_window or context) < context
    ):
        return "some layers attend to a sliding window"
    rope = config.rope_parameters
    if rope.get("rope_type", "default") not in _FIXED_ROPE or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return f"its rotary embedding {rope} is not supported"
    if config.hidden_act != "silu":
        return f"its activation {config.hidden_act} is not supported"
    return _unsupported_module(inner)


def _unsupported_module(inner: Any) -> str | None:
    if type(inner.model.embed_tokens) is not torch.nn.Embedding or type(inner.lm_head) is not torch.nn.Linear:
        return "the embedding or the head is adapted"
    for layer in inner.model.layers:
        for name, module in [*layer.self_attn.named_children(), *layer.mlp.named_children()]:
            is_linear = type(module) in (torch.nn.Linear, Fp8Linear) or nf4.is_packed(module)
            if name.endswith("_proj") and not is_linear and plain_adapter(module) is None:
                return f"{name} is neither a linear layer nor one with a plain LoRA adapter"
    return None


def compute_quantized(model: Any, quantization: str) -> None:
    """Put our own layers below the adapters. Where the architecture is unknown, those of bitsandbytes stay."""
    if quantization == "none":
        return
    problem = unsupported_reason(model)
    if problem is None:
        convert = fp8.convert if quantization == "fp8" else nf4.convert
        convert(base_model(model))
    elif quantization == "fp8":
        raise TrainerError("InvalidConfig", f"model.quantization fp8 cannot be used here: {problem}")
