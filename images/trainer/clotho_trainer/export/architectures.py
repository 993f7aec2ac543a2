"""What llama.cpp needs for each architecture: its shape as metadata, and weights that it stores differently."""

import math
from collections.abc import Callable
from typing import Any, Final

import gguf
import numpy as np
from msgspec import Struct

from clotho_trainer.failures import TrainerError

Array = np.ndarray[Any, np.dtype[Any]]


class Architecture(Struct, frozen=True, kw_only=True):
    arch: gguf.MODEL_ARCH
    interleaves_rotary: bool = False  # llama.cpp rotates neighbours, Transformers rotates halves
    centres_norms: bool = False  # Gemma stores w where the norm multiplies by 1 + w
    describe: Callable[[gguf.GGUFWriter, Any], None] = lambda _writer, _config: None

    @property
    def name(self) -> str:
        return gguf.MODEL_ARCH_NAMES[self.arch]

    def store(self, name: str, rows: Array, config: Any) -> Array:
        """Rows of a weight by its Transformers name, as llama.cpp stores them; of heads only whole ones."""
        if self.centres_norms and name.endswith("norm.weight"):
            return rows + 1
        if self.interleaves_rotary and (".q_proj." in name or ".k_proj." in name):
            return interleave(rows, head_size(config))
        return rows


def interleave(rows: Array, size: int) -> Array:
    """The rows of each head from (first half, second half) to neighbouring pairs."""
    halves = rows.reshape(-1, 2, size // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def of(config: Any) -> Architecture:
    found = _ARCHITECTURES.get(config.model_type)
    if found is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise TrainerError(
            "InvalidConfig", f"GGUF cannot be written for {config.model_type} models, only for {known}; use safetensors"
        )
    if found.centres_norms and not config.tie_word_embeddings:
        raise TrainerError("InvalidConfig", "llama.cpp supports Gemma with tied embeddings only; use safetensors")
    return found


def describe(writer: gguf.GGUFWriter, config: Any) -> None:
    size = head_size(config)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(_rotated(config))
    writer.add_rope_freq_base(_rope(config).get("rope_theta", 10_000.0))
    of(config).describe(writer, config)
    _describe_scaling(writer, config)


def extra_tensors(config: Any) -> dict[str, Array]:
    """Rotary factors, which Transformers computes from its config and llama.cpp reads as tensors."""
    rope = _rope(config)
    if rope.get("rope_type") == "llama3":
        return {"rope_freqs.weight": _llama3_factors(rope, head_size(config))}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.asarray(rope[f"{kind}_factor"], dtype=np.float32)
            for kind in ("long", "short")
        }
    return {}


def head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _rotated(config: Any) -> int:
    return int(head_size(config) * _rope(config).get("partial_rotary_factor", 1.0))


def _rope(config: Any) -> dict[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


def _describe_scaling(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = _rope(config)
    kind = rope.get("rope_type", "default")
    if kind in ("default", "llama3"):
        return
    original = rope.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", config.max_position_embeddings
    )
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "longrope":
        writer.add_rope_scaling_attn_factors(_longrope_attention(rope, config.max_position_embeddings / original))
    else:
        raise TrainerError("InvalidConfig", f"llama.cpp has no counterpart of rotary scaling {kind}; use safetensors")
    if kind != "linear":
        writer.add_rope_scaling_orig_ctx_len(original)


def _longrope_attention(rope: dict[str, Any], stretch: float) -> float:
    given = rope.get("attention_factor")
    if given is not None:
        return float(given)
    original = rope["original_max_position_embeddings"]
    return math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0


def _llama3_factors(rope: dict[str, Any], size: int) -> Array:
    """How much each wavelength is stretched: not at all when short, by `factor` when long, in between smoothly."""
    turns = rope["original_max_position_embeddings"] / (
        2 * math.pi * rope["rope_theta"] ** (np.arange(0, size, 2) / size)
    )
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(1 / ((1 - smooth) / rope["factor"] + smooth), dtype=np.float32)


def _describe_gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    expected = config.hidden_size // config.num_attention_heads if config.num_hidden_layers == 46 else head_size(config)
    if config.query_pre_attn_scalar != expected:  # llama.cpp has no field for it: it goes by the size of the model
        raise TrainerError(
            "InvalidConfig",
            f"llama.cpp would scale attention by {expected} where this Gemma has query_pre_attn_scalar "
            f"{config.query_pre_attn_scalar}; use safetensors",
        )
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _describe_phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window or 0)  # the zero marks Phi-4 for llama.cpp
    if _rope(config).get("rope_type", "default") == "default":
        writer.add_rope_scaling_orig_ctx_len(config.max_position_embeddings)


_LLAMA: Final = Architecture(arch=gguf.MODEL_ARCH.LLAMA, interleaves_rotary=True)
_ARCHITECTURES: Final[dict[str, Architecture]] = {
    "qwen2": Architecture(arch=gguf.MODEL_ARCH.QWEN2),
    "qwen3": Architecture(arch=gguf.MODEL_ARCH.QWEN3),
    "llama": _LLAMA,
    "mistral": _LLAMA,  # llama.cpp has no name of its own for it
    "gemma": Architecture(arch=gguf.MODEL_ARCH.GEMMA, centres_norms=True),
    "gemma2": Architecture(arch=gguf.MODEL_ARCH.GEMMA2, centres_norms=True, describe=_describe_gemma2),
    "phi": Architecture(arch=gguf.MODEL_ARCH.PHI2),
    "phi3": Architecture(arch=gguf.MODEL_ARCH.PHI3, describe=_describe_phi3),
}
