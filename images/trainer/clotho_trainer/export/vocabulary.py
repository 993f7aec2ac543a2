"""A Hugging Face tokenizer.json as the vocabulary of a GGUF file. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final

from gguf import TokenType
from msgspec import Struct

from clotho_trainer.failures import TrainerError

_BYTE = re.compile(r"^<0x[0-9A-F]{2}>$")
_NEVER: Final = -1e9  # a score that any merge beats
_PHI3_TOKENS: Final = frozenset({"<unk>", "<s>", "</s>", "<|endoftext|>"})  # without them llama.cpp knows no Phi-3

# llama.cpp identifies how a byte-level vocabulary splits text by name only. These are the expressions behind the names.
_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PRE_TOKENIZERS: Final[dict[str, str]] = {
    rf"{_WORDS}|\p{{N}}{_REST}": "qwen2",
    rf"{_WORDS}|\p{{N}}{{1,3}}{_REST}": "llama-bpe",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "tekken",
}


class Vocabulary(Struct, frozen=True, kw_only=True):
    model: str  # gpt2: byte-level pairs; llama: SentencePiece
    pre: str
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    add_space_prefix: bool | None = None
    swallows_space: bool = False  # its control tokens take the space after them: Phi-3's


def read(tokenizer: dict[str, Any], size: int) -> Vocabulary:
    """`size` is the number of embeddings: ids that the tokenizer leaves free are filled up."""
    model = tokenizer["model"]
    kind = model.get("type") or ("BPE" if "merges" in model else "unknown")
    if kind == "BPE" and _is_byte_level(tokenizer):
        return _byte_level(tokenizer, size)
    if kind == "BPE" and model.get("byte_fallback"):
        return _sentence_piece(tokenizer, size, _scores_of_merges(model["merges"]))
    if kind == "WordLevel" and _is_single_characters(tokenizer):
        return _sentence_piece(tokenizer, size, {})
    raise TrainerError("InvalidConfig", f"GGUF has no counterpart of this {kind} tokenizer; use safetensors")


def _byte_level(tokenizer: dict[str, Any], size: int) -> Vocabulary:
    tokens, types = _entries(tokenizer, size)
    return Vocabulary(
        model="gpt2",
        pre=_pre_tokenizer(tokenizer),
        tokens=tuple(tokens),
        types=tuple(types),
        merges=tuple(" ".join(pair) for pair in _pairs(tokenizer["model"]["merges"])),
    )


def _sentence_piece(tokenizer: dict[str, Any], size: int, scores: dict[str, float]) -> Vocabulary:
    """SentencePiece merges the pair whose result has the best score: the rank of the merge is the score."""
    tokens, types = _entries(tokenizer, size)
    unknown = tokenizer["model"].get("unk_token")
    for index, piece in enumerate(tokens):
        if piece == unknown:
            types[index] = TokenType.UNKNOWN
        elif _BYTE.match(piece):
            types[index] = TokenType.BYTE
        elif types[index] is TokenType.USER_DEFINED:
            tokens[index] = piece.replace("▁", " ")  # matched in plain text
        else:
            tokens[index] = piece.replace(" ", "▁")
    plain = (TokenType.NORMAL, TokenType.BYTE, TokenType.UNKNOWN, TokenType.CONTROL)
    return Vocabulary(
        model="llama",
        pre="default",
        tokens=tuple(tokens),
        types=tuple(types),
        scores=tuple(
            scores.get(token, 0.0) if kind in plain else _NEVER for token, kind in zip(tokens, types, strict=True)
        ),
        add_space_prefix=_adds_space(tokenizer),
        swallows_space=set(tokens) >= _PHI3_TOKENS and any(added.get("rstrip") for added in tokenizer["added_tokens"]),
    )


def _entries(tokenizer: dict[str, Any], size: int) -> tuple[list[str], list[TokenType]]:
    tokens = [f"[PAD{index}]" for index in range(size)]
    types = [TokenType.UNUSED] * size
    for token, index in tokenizer["model"]["vocab"].items():
        tokens[index], types[index] = token, TokenType.NORMAL
    for added in tokenizer.get("added_tokens", ()):
        tokens[added["id"]] = added["content"]
        types[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    return tokens, types


def _pairs(merges: list[Any]) -> Iterator[tuple[str, str]]:
    """Older files write a merge as one string, newer ones as two."""
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def _scores_of_merges(merges: list[Any]) -> dict[str, float]:
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(_pairs(merges)):
        scores.setdefault(left + right, -float(rank))
    return scores


def _steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, be it one or a sequence."""
    if part is None:
        return
    nested = part.get("pretokenizers") or part.get("normalizers")
    if part["type"] == "Sequence":
        for each in nested or ():
            yield from _steps(each)
    else:
        yield part


def _is_byte_level(tokenizer: dict[str, Any]) -> bool:
    return any(step["type"] == "ByteLevel" for step in _steps(tokenizer.get("pre_tokenizer")))


def _is_single_characters(tokenizer: dict[str, Any]) -> bool:
    added = {token["content"] for token in tokenizer.get("added_tokens", ())}
    splits = any(
        step["type"] == "Split" and step["pattern"] in ({"String": ""}, {"Regex": ""})
        for step in _steps(tokenizer.get("pre_tokenizer"))
    )
    return splits and all(len(token) == 1 or token in added for token in tokenizer["model"]["vocab"])


def _adds_space(tokenizer: dict[str, Any]) -> bool:
    steps = [*_steps(tokenizer.get("normalizer")), *_steps(tokenizer.get("pre_tokenizer"))]
    return any(
        step["type"] == "Prepend" or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in steps
    )


def _pre_tokenizer(tokenizer: dict[str, Any]) -> str:
    steps = list(_steps(tokenizer.get("pre_tokenizer")))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    expressions = [step["pattern"].get("Regex", "") for step in steps if step["type"] == "Split"]
    if len(expressions) == 1 and expressions[0] in _PRE_TOKENIZERS:
        return _PRE_TOKENIZERS[expressions[0]]
    raise TrainerError(
        "InvalidConfig",
        f"this tokenizer splits text in a way ({', '.join(kinds)}) for which llama.cpp's name is not known here: "
        "the model would read other tokens than it was trained on; use safetensors",
    )
