"""The policy's weights in the layout of the fast engine, without a second copy: the model's own parameters become views
of larger matrices, so that layers with a common input run as one product and training still owns the weights."""

from dataclasses import dataclass
from typing import Any

import torch

from clotho_trainer.inference.paged import linear
from clotho_trainer.inference.paged.linear import FusedLinear, fused
from clotho_trainer.model.architecture import base_model


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

    @property
    def linears(self) -> tuple[FusedLinear, ...]:
        return self.qkv, self.output, self.gate_up, self.down


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

    @torch.no_grad()
    def refresh(self) -> None:
        linear.refresh([each for layer in self.layers for each in layer.linears])


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
