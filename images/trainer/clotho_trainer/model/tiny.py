"""A random Qwen3 of 90 thousand parameters with a tokenizer of single characters: small enough to learn in seconds.

Its files are written without torch and transformers, whose import takes longer than everything else that is done here.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SPECIAL = ["<pad>", "<eos>", "<unk>", "<|user|>", "<|assistant|>"]
_PAD, _EOS = 0, 1
_CHARACTERS = string.ascii_lowercase + string.digits + " \n.,:;=+-*/()<>?!'\"[]"  # capitals are read as small letters
_CHAT = (
    "{% for message in messages %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_TOKENS = {"pad_token": _SPECIAL[_PAD], "eos_token": _SPECIAL[_EOS], "unk_token": _SPECIAL[2], "padding_side": "left"}
_VOCABULARY = {token: index for index, token in enumerate([*_SPECIAL, *_CHARACTERS])}
_LAYERS, _HIDDEN, _INTERMEDIATE, _HEADS, _HEAD = 2, 64, 128, 4, 16
_DEVIATION = 0.2  # at the usual 0.02 the logits of so small a model cannot sharpen
_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "float32",
    "vocab_size": len(_VOCABULARY),
    "hidden_size": _HIDDEN,
    "intermediate_size": _INTERMEDIATE,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "head_dim": _HEAD,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "initializer_range": _DEVIATION,
    "pad_token_id": _PAD,
    "eos_token_id": _EOS,
    "bos_token_id": None,
}


def write(folder: Path, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_weights(np.random.default_rng(seed)), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _CONFIG)
    _write_json(folder / "generation_config.json", {"pad_token_id": _PAD, "eos_token_id": _EOS})
    _tokenizer().save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **_TOKENS})
    (folder / "chat_template.jinja").write_text(_CHAT)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """What reading it from those files gives."""
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(tokenizer_object=_tokenizer(), **_TOKENS)  # type: ignore[no-untyped-call]
    wrapped.chat_template = _CHAT
    return wrapped


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(_VOCABULARY, unk_token="<unk>"))  # noqa: S106 - not a password
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _weights(random: np.random.Generator) -> dict[str, np.ndarray]:
    """As transformers initialises them: normal, with norms of one and no embedding of the padding."""

    def normal(*shape: int) -> np.ndarray:
        return random.normal(0.0, _DEVIATION, shape).astype(np.float32)

    vocabulary, inside = len(_VOCABULARY), _HEADS * _HEAD
    weights = {"model.embed_tokens.weight": normal(vocabulary, _HIDDEN), "lm_head.weight": normal(vocabulary, _HIDDEN)}
    weights["model.embed_tokens.weight"][_PAD] = 0
    norms = {"model.norm": _HIDDEN}
    for layer in range(_LAYERS):
        name = f"model.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj"):
            weights[f"{name}.self_attn.{part}.weight"] = normal(inside, _HIDDEN)
        weights[f"{name}.self_attn.o_proj.weight"] = normal(_HIDDEN, inside)
        for part in ("gate_proj", "up_proj"):
            weights[f"{name}.mlp.{part}.weight"] = normal(_INTERMEDIATE, _HIDDEN)
        weights[f"{name}.mlp.down_proj.weight"] = normal(_HIDDEN, _INTERMEDIATE)
        norms |= {f"{name}.self_attn.{part}": _HEAD for part in ("q_norm", "k_norm")}
        norms |= {f"{name}.{part}": _HIDDEN for part in ("input_layernorm", "post_attention_layernorm")}
    return weights | {f"{name}.weight": np.ones(size, np.float32) for name, size in norms.items()}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
