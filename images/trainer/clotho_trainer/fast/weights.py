"""The policy's weights as the fast engine wants them, without a second copy: the model's own parameters become views
of larger matrices, so that layers with a common input run as one product and training still owns the weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from clotho_trainer.lean_adapters import plain_adapter

ARCHITECTURES = frozenset({"qwen2", "qwen3", "llama", "mistral"})
_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})  # the others depend on the length of the sequence
_ALIGNMENT = 64  # adapters are padded to as many rows, so that the products stay aligned


class FusedLinear:
    """y = x W' + b + (x A') B' for layers that read the same x.

    `store` holds the base weights, which are the model's parameters, and below them a copy of the adapters' A: one
    product gives both. `up` is the scaled B of all layers, block by block.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        bases = [getattr(module, "base_layer", module) for module in modules]
        first = bases[0].weight
        self.width = sum(base.out_features for base in bases)
        adapters = [plain_adapter(module) for module in modules]
        ranks = [len(module.lora_A[name].weight) if name else 0 for module, name in zip(modules, adapters, strict=True)]
        self._rank = -(-sum(ranks) // _ALIGNMENT) * _ALIGNMENT
        self._store = first.new_zeros(self.width + self._rank, first.shape[1])
        self._up = first.new_zeros(self.width, self._rank)
        self._bias = first.new_zeros(self.width + self._rank) if bases[0].bias is not None else None
        self._copies: list[tuple[torch.Tensor, torch.Tensor, float]] = []  # destination, source, scale
        row, below = 0, self.width
        for module, base, name, rank in zip(modules, bases, adapters, ranks, strict=True):
            rows = slice(row, row + base.out_features)
            _become_view(base.weight, self._store[rows])
            if self._bias is not None:
                _become_view(base.bias, self._bias[rows])
            if name:
                columns = slice(below - self.width, below - self.width + rank)
                self._copies.append((self._store[below : below + rank], module.lora_A[name].weight, 1.0))
                self._copies.append((self._up[rows, columns], module.lora_B[name].weight, module.scaling[name]))
            row, below = rows.stop, below + rank

    def refresh(self) -> None:
        """Take over what training did to the adapters; the base weights are shared anyway."""
        for destination, source, scale in self._copies:
            destination.copy_(source if scale == 1.0 else source * scale)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The first `width` columns are the result."""
        y = functional.linear(x, self._store, self._bias)
        if self._rank:
            y[:, : self.width].addmm_(y[:, self.width :], self._up.t())
        return y


def _become_view(parameter: torch.nn.Parameter, view: torch.Tensor) -> None:
    view.copy_(parameter.data)
    parameter.data = view


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
        inner = _inner(model)
        config, core = inner.config, inner.model
        self.query_heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads)
        self.head_dim = int(core.layers[0].self_attn.head_dim)
        self.epsilon = float(config.rms_norm_eps)
        self.embedding: torch.Tensor = core.embed_tokens.weight
        self.head: torch.Tensor = inner.lm_head.weight
        self.final_norm: torch.Tensor = core.norm.weight
        with torch.no_grad():
            self.layers = [_layer(layer) for layer in core.layers]
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
    def cache_bytes_per_token(self) -> int:
        return 2 * len(self.layers) * self.kv_heads * self.head_dim * self.embedding.element_size()

    def refresh(self) -> None:
        for layer in self.layers:
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
                linear.refresh()


def why_not(model: Any) -> str | None:
    """What the fast engine cannot do about this model, or None."""
    inner = _inner(model)
    config = inner.config
    if config.model_type not in ARCHITECTURES:
        return f"the architecture {config.model_type} is not among {', '.join(sorted(ARCHITECTURES))}"
    if getattr(config, "quantization_config", None) is not None:
        return "the base is quantised"
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
            is_linear = type(module) is torch.nn.Linear or plain_adapter(module) is not None
            if name.endswith("_proj") and not is_linear:
                return f"{name} is neither a linear layer nor one with a plain LoRA adapter"
    return None


def _inner(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return Layer(
        attention_norm=layer.input_layernorm.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        qkv=FusedLinear([attention.q_proj, attention.k_proj, attention.v_proj]),
        output=FusedLinear([attention.o_proj]),
        gate_up=FusedLinear([mlp.gate_proj, mlp.up_proj]),
        down=FusedLinear([mlp.down_proj]),
    )
