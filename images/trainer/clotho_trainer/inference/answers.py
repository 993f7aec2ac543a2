"""What each dialect expects back. Every answer says which policy wrote it."""

import time
import uuid
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from clotho_trainer.inference.core.engine import Completion

Decode = Callable[[int], str]


def stamp(completion: Completion) -> dict[str, Any]:
    """The oldest version, and the tokens each wrote when weights changed under the sequence."""
    return {
        "policy_version": completion.version,
        "policy_versions": [list(entry) for entry in completion.versions],
    }


def sglang(completion: Completion, prompt_tokens: int, with_logprobs: bool) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "finish_reason": {"type": completion.finish_reason, "matched": completion.stop_string},
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(completion.tokens),
        **stamp(completion),
    }
    if with_logprobs:
        texts = repeat(None, len(completion.tokens))
        meta["output_token_logprobs"] = list(zip(completion.logprobs, completion.tokens, texts, strict=True))
    return {"text": completion.text, "output_ids": completion.tokens, "meta_info": meta}


def text_completion(
    model: str, answers: Sequence[tuple[list[int], list[Completion]]], decode: Decode, with_logprobs: bool
) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    for prompt, completions in answers:
        for completion in completions:
            logprobs = None
            if with_logprobs:
                tokens = [decode(token) for token in completion.tokens]
                logprobs = {"tokens": tokens, "token_logprobs": completion.logprobs, "top_logprobs": None}
            choices.append(_choice(len(choices), completion, prompt) | {"text": completion.text, "logprobs": logprobs})
    return _envelope("text_completion", "cmpl", model, answers, choices)


def chat_completion(
    model: str, prompt: list[int], completions: list[Completion], decode: Decode, with_logprobs: bool
) -> dict[str, Any]:
    choices = []
    for index, completion in enumerate(completions):
        logprobs = {"content": _chat_logprobs(completion, decode)} if with_logprobs else None
        message = {"role": "assistant", "content": completion.text}
        choices.append(_choice(index, completion, prompt) | {"message": message, "logprobs": logprobs})
    return _envelope("chat.completion", "chatcmpl", model, [(prompt, completions)], choices)


def model_list(model: str, context: int) -> dict[str, Any]:
    entry = {"id": model, "object": "model", "owned_by": "clotho", "max_model_len": context}
    return {"object": "list", "data": [entry]}


def _chat_logprobs(completion: Completion, decode: Decode) -> list[dict[str, Any]]:
    pairs = zip(completion.tokens, completion.logprobs, strict=True)
    return [
        {"token": (text := decode(token)), "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for token, logprob in pairs
    ]


def _choice(index: int, completion: Completion, prompt: list[int]) -> dict[str, Any]:
    return {
        "index": index,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_string,
        "token_ids": completion.tokens,
        "prompt_token_ids": prompt,
        **stamp(completion),
    }


def _envelope(
    kind: str,
    prefix: str,
    model: str,
    answers: Sequence[tuple[list[int], list[Completion]]],
    choices: list[dict[str, Any]],
) -> dict[str, Any]:
    read = sum(len(prompt) for prompt, _ in answers)
    written = sum(len(completion.tokens) for _, completions in answers for completion in completions)
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }
