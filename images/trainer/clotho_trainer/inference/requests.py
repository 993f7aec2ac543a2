"""The three request dialects (SGLang, OpenAI completions, OpenAI chat) read into one kind of request."""

from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from clotho_trainer.inference.core.engine import Sampling

Count = Annotated[int, Meta(ge=1, le=4096)]
NonNegative = Annotated[int, Meta(ge=0)]
Temperature = Annotated[float, Meta(ge=0, le=100)]
Share = Annotated[float, Meta(gt=0, le=1)]
Prompt = str | list[int | str | list[int]]  # one text, one list of token ids, or several of either
Stop = str | int | list[str | int]


class BadRequestError(ValueError):
    """The sentence is sent back to the client."""


class SglangSampling(Struct):
    n: Count = 1
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = 128
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: int | None = None
    min_new_tokens: NonNegative | None = None
    ignore_eos: bool | None = None
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None


class GenerateRequest(Struct):
    """One prompt, as text or as token ids; or a list of either."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SglangSampling = msgspec.field(default_factory=SglangSampling)
    return_logprob: bool = False


class OpenAiRequest(Struct):
    n: Count | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: int | None = None
    min_tokens: NonNegative | None = None
    ignore_eos: bool | None = None
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None
    stream: bool | None = None


class CompletionRequest(OpenAiRequest):
    prompt: Prompt = ""
    logprobs: int | bool | None = None
    echo: bool | None = None


class ChatRequest(OpenAiRequest):
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None


def sglang_sampling(wish: SglangSampling, temperature: float, limit: int) -> Sampling:
    texts, tokens = split_stops(wish.stop, wish.stop_token_ids)
    return Sampling(
        max_tokens=wish.max_new_tokens or limit,
        temperature=temperature if wish.temperature is None else wish.temperature,
        top_p=wish.top_p or 1.0,
        top_k=max(wish.top_k or 0, 0),
        min_tokens=wish.min_new_tokens or 0,
        ignore_end=bool(wish.ignore_eos),
        stop=texts,
        stop_tokens=tokens,
    )


def openai_sampling(wish: OpenAiRequest, temperature: float, default_tokens: int) -> Sampling:
    if wish.stream:
        raise BadRequestError("stream is not supported: ask for the whole answer")
    texts, tokens = split_stops(wish.stop, wish.stop_token_ids)
    return Sampling(
        max_tokens=wish.max_completion_tokens or wish.max_tokens or default_tokens,
        temperature=temperature if wish.temperature is None else wish.temperature,
        top_p=wish.top_p or 1.0,
        top_k=max(wish.top_k or 0, 0),
        min_tokens=wish.min_tokens or 0,
        ignore_end=bool(wish.ignore_eos),
        stop=texts,
        stop_tokens=tokens,
    )


def split_stops(stop: Stop | None, ids: list[int] | None) -> tuple[tuple[str, ...], frozenset[int]]:
    """Atropos environments put token ids among the stop strings."""
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    texts = tuple(entry for entry in stops if isinstance(entry, str) and entry)
    return texts, frozenset([entry for entry in stops if isinstance(entry, int)] + (ids or []))


def generate_prompt(body: GenerateRequest) -> Prompt:
    given = body.text if body.input_ids is None else body.input_ids
    if given is None:
        raise BadRequestError("give text or input_ids")
    return cast("Prompt", given)


def prompts_of(prompt: Prompt) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))  # no loop in Python over what may be thousands of tokens
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if int in kinds or not kinds:
        raise BadRequestError("the prompt is empty, or mixes token ids with texts")
    return cast("list[str | list[int]]", prompt)


def is_several(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and type(prompt[0]) is not int
