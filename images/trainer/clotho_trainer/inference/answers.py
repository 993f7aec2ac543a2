"""What each dialect expects back, whole or as a stream. Every answer names the policy version that wrote it."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from typing import Any

from clotho_trainer.inference.core.engine import Completion, Scores, TopLogprobs

Decode = Callable[[int], str]


class LogprobForm(Enum):
    """Of an answer of `/generate`."""

    NONE = "none"
    PAIRS = "pairs"  # as SGLang has them, each beside its token
    FLAT = "flat"


@dataclass(frozen=True, slots=True)
class Scored:
    """Tokens with their log-probabilities, sampled or given."""

    tokens: Sequence[int]
    logprobs: Sequence[float | None]
    top_logprobs: Sequence[TopLogprobs | None] = ()

    @classmethod
    def of(cls, completion: Completion) -> "Scored":
        return cls(completion.tokens, completion.logprobs, completion.top_logprobs)

    @classmethod
    def prompt(cls, tokens: Sequence[int], scores: Scores) -> "Scored":
        return cls(tokens, scores.logprobs, scores.top_logprobs)

    def __add__(self, other: "Scored") -> "Scored":
        return Scored(
            [*self.tokens, *other.tokens],
            [*self.logprobs, *other.logprobs],
            [*self.top_logprobs, *other.top_logprobs],
        )


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of one OpenAI answer have in common."""

    kind: str
    model: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def wrap(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
        prefix = "chatcmpl" if self.kind.startswith("chat") else "cmpl"
        body = {
            "id": f"{prefix}-{self.id}",
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return body if usage is None else body | {"usage": usage}


def usage(prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> dict[str, int]:
    prompt_tokens = sum(map(len, prompts))
    completion_tokens = sum(len(completion.tokens) for completion in completions)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def versions(completion: Completion) -> dict[str, Any]:
    """The oldest version, and the tokens each wrote when weights changed under the sequence."""
    return {
        "policy_version": completion.version,
        "policy_versions": [list(entry) for entry in completion.versions],
    }


def choice(index: int, completion: Completion, prompt: Sequence[int]) -> dict[str, Any]:
    """The fields of a finished choice beside its text."""
    return {
        "index": index,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_string,
        "token_ids": completion.tokens,
        "prompt_token_ids": prompt,
        **versions(completion),
    }


def sglang(
    completion: Completion, prompt_tokens: int, logprobs: LogprobForm, *, prompt: Scored | None = None
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "finish_reason": {"type": completion.finish_reason, "matched": completion.stop_string},
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(completion.tokens),
        **versions(completion),
        **_output_logprobs(completion.tokens, completion.logprobs, logprobs),
    }
    if logprobs is not LogprobForm.NONE and completion.top_logprobs:
        meta["output_top_logprobs"] = [_sglang_top(top) for top in completion.top_logprobs]
    if prompt is not None:
        meta["input_token_logprobs"] = _sglang_logprobs(prompt.tokens, prompt.logprobs)
        if prompt.top_logprobs:
            meta["input_top_logprobs"] = [_sglang_top(top or ()) for top in prompt.top_logprobs]
    return {"text": completion.text, "output_ids": completion.tokens, "meta_info": meta}


def sglang_part(text: str, scored: Scored, prompt_tokens: int, logprobs: LogprobForm) -> dict[str, Any]:
    """Of a sequence that is still being sampled."""
    meta: dict[str, Any] = {
        "finish_reason": None,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(scored.tokens),
        **_output_logprobs(scored.tokens, scored.logprobs, logprobs),
    }
    return {"text": text, "output_ids": scored.tokens, "meta_info": meta}


def text_logprobs(scored: Scored, decode: Decode, offset: int = 0) -> dict[str, Any]:
    """As OpenAI's completions have them; offsets count characters of the answer's text."""
    texts = [decode(token) for token in scored.tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    tops = [_named(top, decode) if top is not None else None for top in scored.top_logprobs]
    return {
        "tokens": texts,
        "token_logprobs": scored.logprobs,
        "top_logprobs": tops or None,
        "text_offset": offsets,
    }


def chat_logprobs(scored: Scored, decode: Decode) -> dict[str, Any]:
    tops = scored.top_logprobs or repeat((), len(scored.tokens))
    entries = zip(scored.tokens, scored.logprobs, tops, strict=True)
    return {
        "content": [
            {
                "token": (text := decode(token)),
                "logprob": logprob,
                "bytes": list(text.encode()),
                "top_logprobs": [_alternative(*other, decode) for other in top] if top else [],
            }
            for token, logprob, top in entries
        ]
    }


def model_list(model: str, context: int, created: int) -> dict[str, Any]:
    entry = {"id": model, "object": "model", "created": created, "owned_by": "clotho", "max_model_len": context}
    return {"object": "list", "data": [entry]}


def _output_logprobs(
    tokens: Sequence[int], logprobs: Sequence[float | None], form: LogprobForm
) -> dict[str, Sequence[Any]]:
    if form is LogprobForm.NONE:
        return {}
    if form is LogprobForm.FLAT:
        return {"output_logprobs": logprobs}
    return {"output_token_logprobs": _sglang_logprobs(tokens, logprobs)}


def _sglang_logprobs(tokens: Sequence[int], logprobs: Sequence[float | None]) -> list[Any]:
    return list(zip(logprobs, tokens, repeat(None, len(tokens)), strict=True))  # no loop in Python: every answer has it


def _sglang_top(top: TopLogprobs) -> list[Any]:
    return [(logprob, token, None) for token, logprob in top]


def _named(top: TopLogprobs, decode: Decode) -> dict[str, float]:
    """By text, as OpenAI has it; of tokens with the same text the likeliest counts."""
    return {decode(token): logprob for token, logprob in reversed(top)}


def _alternative(token: int, logprob: float, decode: Decode) -> dict[str, Any]:
    text = decode(token)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
