"""Tiny random models of every architecture that can be exported, with tokenizers trained on the spot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, set_seed
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2_SPLIT

LLAMA3_SPLIT = QWEN2_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|")
TEXT = [
    "The quick brown fox jumps over the lazy dog, then it rests 12 345 hours under the old tree.",
    "Clotho spins the thread; Lachesis measures it. It's the reader's turn, isn't it?\n\nYes: 2 + 2 = 4.",
    "def spin(thread: str) -> int:\n    return len(thread)  # the length, of course",
    "Über den Wolken – naïve café, 東京 and Ελλάδα.",
] * 5
SAMPLES = [
    "The thread is 345 long; it's old.",
    "def dog(tree):\n    return  the fox",
    "naïve café – 東京, 12345!",
    "  two  spaces  lead",
]


def write(kind: str, folder: Path, **changes: Any) -> Path:
    """`kind` is a model type of Transformers."""
    tokenizer = TOKENIZERS[kind]()
    sizes = {
        "vocab_size": len(tokenizer) + 3,  # more embeddings than tokens, as real models have
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    set_seed(0)
    config = AutoConfig.for_model(kind, **(sizes | _PECULIARITIES.get(kind, {}) | changes))
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # ones and zeros would hide a mistake
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def byte_level(split: str, special: list[str], end: str, start: str | None = None) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    if start:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A {start} $B", special_tokens=[(start, tokenizer.token_to_id(start))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=special[0], bos_token=start)


def sentence_piece(
    special: list[str], end: str, *, prefix_space: bool, swallow_space: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """As Transformers converts SentencePiece models: pairs, bytes for what is unknown, ▁ for spaces."""
    trained = Tokenizer(models.BPE())
    spaces = normalizers.Replace(" ", "▁")
    trained.normalizer = spaces
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("▁*[^▁]+"), "isolated")
    trained.train_from_iterator(TEXT[:3], trainers.BpeTrainer(vocab_size=200))
    pieces = trained.get_vocab()
    begin = ["<pad>", "</s>", "<s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    ordered = [*begin, *sorted(pieces, key=lambda piece: pieces[piece])]
    merges = [tuple(pair) for pair in _merges_of(trained)]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: index for index, piece in enumerate(ordered)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix_space else spaces
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, rstrip=token in swallow_space)
            for token in [*begin[:4], *special]
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token=end, unk_token="<unk>", pad_token="<pad>"
    )


def _merges_of(tokenizer: Tokenizer) -> list[list[str]]:
    import json

    merges: list[list[str]] = json.loads(tokenizer.to_str())["model"]["merges"]
    return merges


def _qwen() -> PreTrainedTokenizerFast:
    return byte_level(QWEN2_SPLIT, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>")


def _llama3() -> PreTrainedTokenizerFast:
    special = ["<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return byte_level(LLAMA3_SPLIT, special, "<|eot_id|>", "<|begin_of_text|>")


PHI3_TURNS = ["<|user|>", "<|assistant|>", "<|end|>"]
TOKENIZERS = {
    "qwen2": _qwen,
    "qwen3": _qwen,
    "llama": _llama3,
    "mistral": lambda: sentence_piece([], "</s>", prefix_space=True),
    "gemma": lambda: sentence_piece(["<eos>", "<start_of_turn>", "<end_of_turn>"], "<eos>", prefix_space=False),
    "gemma2": lambda: sentence_piece(["<eos>", "<start_of_turn>", "<end_of_turn>"], "<eos>", prefix_space=False),
    "phi": lambda: byte_level(QWEN2_SPLIT, ["<|endoftext|>", "<|end|>"], "<|endoftext|>"),
    "phi3": lambda: sentence_piece(
        ["<|endoftext|>", *PHI3_TURNS], "<|endoftext|>", prefix_space=True, swallow_space=[*PHI3_TURNS, "</s>"]
    ),
}
_PECULIARITIES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 32},
    "mistral": {"head_dim": 16, "sliding_window": None},
    "gemma": {"head_dim": 16, "tie_word_embeddings": True},
    "gemma2": {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 128, "tie_word_embeddings": True},
    "phi": {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}},
    "phi3": {"sliding_window": None},
}
