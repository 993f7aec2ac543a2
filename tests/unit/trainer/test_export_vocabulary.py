"""tokenizer.json files in the shapes that are about, as llama.cpp's vocabularies."""

from typing import Any

import pytest
from gguf import TokenType

from clotho_trainer.export.vocabulary import read
from clotho_trainer.failures import TrainerError

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}


def tokenizer(pre: Any, model: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    bpe = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    added = [{"id": 3, "content": "<end>", "special": True}, {"id": 4, "content": "<tool>", "special": False}]
    return {"model": bpe | (model or {}), "pre_tokenizer": pre, "added_tokens": added, "normalizer": None} | changes


@pytest.mark.parametrize(
    ("pre", "name"),
    [
        ({"type": "Sequence", "pretokenizers": [split(QWEN), BYTE_LEVEL]}, "qwen2"),
        (
            {"type": "Sequence", "pretokenizers": [split(QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")), BYTE_LEVEL]},
            "llama-bpe",
        ),
        ({"type": "ByteLevel", "use_regex": True}, "gpt-2"),
        ({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}, "smollm"),
    ],
)
def test_byte_level_vocabularies_are_identified_by_how_they_split(pre: dict[str, Any], name: str) -> None:
    made = read(tokenizer(pre), 6)
    assert (made.model, made.pre) == ("gpt2", name)
    assert made.tokens == ("a", "b", "ab", "<end>", "<tool>", "[PAD5]")
    kinds = (TokenType.NORMAL,) * 3 + (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNUSED)
    assert made.types == kinds
    assert made.merges == ("a b",)


def test_merges_of_older_files_are_texts() -> None:
    assert read(tokenizer({"type": "ByteLevel"}, {"merges": ["a b"]}), 5).merges == ("a b",)


def test_a_way_of_splitting_that_has_no_name_is_refused() -> None:
    with pytest.raises(TrainerError, match="other tokens than it was trained on; use safetensors"):
        read(tokenizer({"type": "Sequence", "pretokenizers": [split(r"\w+"), BYTE_LEVEL]}), 5)


def test_sentence_piece_scores_are_the_order_of_the_merges() -> None:
    model = {
        "vocab": {"<unk>": 0, "<0x41>": 1, "▁": 2, "a": 3, "▁a": 4, "aa": 5},
        "merges": [["a", "a"], ["▁", "a"]],
        "byte_fallback": True,
        "unk_token": "<unk>",
    }
    added = [{"id": 6, "content": "▁▁", "special": False}]
    made = read(tokenizer(None, model, added_tokens=added, normalizer={"type": "Prepend", "prepend": "▁"}), 7)
    assert (made.model, made.pre, made.add_space_prefix) == ("llama", "default", True)
    assert made.types[:3] == (TokenType.UNKNOWN, TokenType.BYTE, TokenType.NORMAL)
    assert made.scores[5] > made.scores[4] > made.scores[6]
    assert made.tokens[6] == "  "  # found in the text as it is written


@pytest.mark.parametrize(
    ("normalizer", "pre", "adds"),
    [
        ({"type": "Replace"}, None, False),
        ({"type": "Sequence", "normalizers": [{"type": "Prepend"}, {"type": "Replace"}]}, None, True),
        (None, {"type": "Metaspace", "prepend_scheme": "first"}, True),
        (None, {"type": "Metaspace", "prepend_scheme": "never"}, False),
    ],
)
def test_the_space_before_the_first_word_follows_the_tokenizer(normalizer: Any, pre: Any, adds: bool) -> None:
    assert read(tokenizer(pre, {"byte_fallback": True}, normalizer=normalizer), 5).add_space_prefix is adds


def test_single_characters_need_no_merges() -> None:
    model = {"type": "WordLevel", "vocab": {" ": 0, "a": 1, "\n": 2}, "unk_token": "<unk>"}
    made = read(tokenizer({"type": "Split", "pattern": {"String": ""}}, model), 5)
    assert made.tokens[:3] == ("▁", "a", "\n")
    assert made.add_space_prefix is False


@pytest.mark.parametrize("model", [{"type": "Unigram"}, {"type": "WordPiece"}, {"type": "WordLevel"}, {"type": "BPE"}])
def test_other_kinds_are_refused(model: dict[str, Any]) -> None:
    with pytest.raises(TrainerError, match=f"no counterpart of this {model['type']} tokenizer"):
        read(tokenizer(None, model), 5)
