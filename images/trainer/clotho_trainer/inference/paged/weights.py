"""The policy's weights as the fast engine wants them, without a second copy: the model's own parameters become views
of larger matrices, so that layers with a common input run as one product and training still owns the weights."""

from dataclasses import dataclass
from typing import Any

import torch

from clotho_trainer.inference.paged.linear import FusedLinear, fused
from clotho_trainer.model import nf4
from clotho_trainer.model.base import base_model
from clotho_trainer.model.fp8 import Fp8Linear
from clotho_trainer.model.lora import plain_adapter

ARCHITECTURES = frozenset({"qwen2", "qwen3", "llama", "mistral"})
_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})  # the others depend on the length of the sequence


@dataclass(frozen=True)
class Layer:
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    qkv: FusedLinear
    output: FusedLinear
    gate_up: FusedLinear
    down: FusedLinear


class PolicyWeights:
    def __init__(self, model: Any, context: int) -> None:
        inner = base_model(model)
        config, core = inner.config, inner.model
        self.query_heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads)
        self.head_dim = int(core.layers[0].self_attn.head_dim)
        self.epsilon = float(config.rms_norm_eps)
        self.embedding: torch.Tensor = core.embed_tokens.weight
        self.head: torch.Tensor = inner.lm_head.weight
        self.final_norm: torch.Tensor = core.norm.weight
        with torch.no_grad():
            self.layers = [_layer(layer, self.dtype) for layer in core.layers]
            positions = torch.arange(context, device=self.device)[None]
            cos, sin = core.rotary_emb(self.embedding[:1], positions)
        half = self.head_dim // 2
        self.cos, self.sin = cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def rounds(self) -> bool:
        """Whether what is multiplied with the base has to be in 8 bits."""
        return self.layers[0].qkv.takes_fp8

    @property
    def cache_bytes_per_token(self) -> int:
        return 2 * len(self.layers) * self.kv_heads * self.head_dim * self.embedding.element_size()

    def refresh(self) -> None:
        for layer in self.layers:
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
                linear.refresh()


def why_not(model: Any) -> str | None:
    """What the fast engine cannot do about this model, or None."""
    inner = base_model(model)
    config = inner.config
    if config.model_type not in ARCHITECTURES:
        return f"the architecture {config.model_type} is not among {', '.join(sorted(ARCHITECTURES))}"
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
    return _odd_module(inner)


def _odd_module(inner: Any) -> str | None:
    if type(inner.model.embed_tokens) is not torch.nn.Embedding or type(inner.lm_head) is not torch.nn.Linear:
        return "the embedding or the head is adapted"
    for layer in inner.model.layers:
        for name, module in [*layer.self_attn.named_children(), *layer.mlp.named_children()]:
            is_linear = type(module) in (torch.nn.Linear, Fp8Linear) or nf4.is_packed(module)
            if name.endswith("_proj") and not is_linear and plain_adapter(module) is None:
                return f"{name} is neither a linear layer nor one with a plain LoRA adapter"
    return None


def _layer(layer: Any, dtype: torch.dtype) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return Layer(
        attention_norm=layer.input_layernorm.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        qkv=fused([attention.q_proj, attention.k_proj, attention.v_proj], dtype),
        output=fused([attention.o_proj], dtype),
        gate_up=fused([mlp.gate_proj, mlp.up_proj], dtype),
        down=fused([mlp.down_proj], dtype),
    )
