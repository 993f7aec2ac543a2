"""What vLLM is asked for, and what it answers."""

from typing import Any

import msgspec
from msgspec import Struct

from clotho_trainer.inference.core.engine import (
    Completion,
    EngineBusyError,
    FinishReason,
    Request,
    Scores,
    TopLogprobs,
)


class _Logprobs(Struct):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None = None  # by "token_id:5"


class _PromptLogprob(Struct):
    logprob: float
    rank: int | None = None


class Choice(Struct):
    text: str
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str
    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[int, _PromptLogprob] | None] | None = None


class Answer(Struct):
    choices: list[Choice]


def decode(body: bytes) -> Answer:
    try:
        return msgspec.json.decode(body, type=Answer)
    except msgspec.MsgspecError as error:
        raise EngineBusyError(f"vLLM sent an answer of an unknown form: {error}") from error


def completion_request(request: Request, model: str, context: int) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "model": model,
        "prompt": list(request.prompt),
        "n": request.n,
        "max_tokens": min(sampling.max_tokens, context - len(request.prompt)),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias},
        "seed": sampling.seed,
        "min_tokens": sampling.min_tokens,
        "ignore_eos": sampling.ignore_end,
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(sampling.stop_tokens),
        "logprobs": sampling.top_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def score_request(tokens: tuple[int, ...], model: str, top: int) -> dict[str, Any]:
    body = {"model": model, "prompt": list(tokens), "max_tokens": 1, "prompt_logprobs": top}
    return body | {"logprobs": 0, "return_token_ids": True}


def completion(choice: Choice, version: int, top: int) -> Completion:
    reason: FinishReason = "length" if choice.finish_reason == "length" else "stop"
    return Completion(
        tokens=tuple(choice.token_ids),
        logprobs=tuple(choice.logprobs.token_logprobs),
        text=choice.text,
        finish_reason=reason,
        versions=((version, len(choice.token_ids)),),
        stop_string=choice.stop_reason if isinstance(choice.stop_reason, str) else None,
        top_logprobs=tuple(_alternatives(entry, top) for entry in choice.logprobs.top_logprobs or ()) if top else (),
    )


def _alternatives(entry: dict[str, float], top: int) -> TopLogprobs:
    """vLLM adds the sampled token where it is not among the likeliest."""
    ordered = sorted(entry.items(), key=lambda pair: -pair[1])[:top]
    return tuple((int(name.removeprefix("token_id:")), logprob) for name, logprob in ordered)


def scores(tokens: tuple[int, ...], entries: list[dict[int, _PromptLogprob] | None], top: int) -> Scores:
    logprobs: list[float | None] = []
    alternatives: list[TopLogprobs | None] = []
    for token, entry in zip(tokens, entries, strict=True):
        logprobs.append(entry[token].logprob if entry else None)
        ordered = sorted((entry or {}).items(), key=lambda pair: -pair[1].logprob)[:top]
        alternatives.append(tuple((other, value.logprob) for other, value in ordered) if entry else None)
    return Scores(tuple(logprobs), tuple(alternatives) if top else ())
