"""The three request dialects (SGLang, OpenAI completions, OpenAI chat) read into one kind of request.

Fields that the server does not implement are refused, never ignored.
"""

from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from clotho_trainer.inference.core.engine import Sampling

Count = Annotated[int, Meta(ge=1, le=4096)]
NonNegative = Annotated[int, Meta(ge=0)]
Temperature = Annotated[float, Meta(ge=0, le=100)]
Share = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Positive = Annotated[float, Meta(gt=0, le=100)]
Alternatives = Annotated[int, Meta(ge=0, le=20)]
Prompt = str | list[int | str | list[int]]  # one text, one list of token ids, or several of either
Stop = str | int | list[str | int]

_OPENAI_TOKENS = 16  # what OpenAI gives a completion that names no limit


class BadRequestError(ValueError):
    """The message is returned to the client."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class _Shared(Struct):
    """Sampling fields that all dialects spell alike."""

    n: Count | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: int | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Positive | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    ignore_eos: bool | None = None
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None


class SglangSampling(_Shared):
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = 128
    min_new_tokens: NonNegative | None = None
    sampling_seed: int | None = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None


class GenerateRequest(Struct):
    """One prompt, as text or as token ids; or a list of either."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SglangSampling = msgspec.field(default_factory=SglangSampling)
    return_logprob: bool = False
    flat_logprobs: bool = False  # our own: numbers alone, as `output_ids` has their tokens
    logprob_start_len: int | None = None
    top_logprobs_num: Alternatives | None = None
    stream: bool | None = None
    image_data: Any = None
    return_hidden_states: bool | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None


class ResponseFormat(Struct):
    type: str = "text"


class OpenAiRequest(_Shared):
    model: str | None = None
    max_tokens: NonNegative | None = None
    min_tokens: NonNegative | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    best_of: int | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    logits_processors: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    include_stop_str_in_output: bool | None = None
    use_beam_search: bool | None = None
    skip_special_tokens: bool = True


class CompletionRequest(OpenAiRequest):
    prompt: Prompt = ""
    logprobs: Alternatives | bool | None = None
    echo: bool | None = None
    suffix: str | None = None


class ChatRequest(OpenAiRequest):
    messages: list[dict[str, Any]] = []
    max_completion_tokens: NonNegative | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    functions: Any = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None


_UNSUPPORTED: dict[type[Struct], tuple[str, ...]] = {
    GenerateRequest: ("image_data", "return_hidden_states"),
    SglangSampling: ("json_schema", "regex", "ebnf"),
    CompletionRequest: ("suffix",),
    ChatRequest: ("functions", "function_call", "audio"),
    OpenAiRequest: (
        *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "bad_words"),
        *("allowed_token_ids", "logits_processors", "prompt_logprobs", "truncate_prompt_tokens"),
        *("include_stop_str_in_output", "use_beam_search"),
    ),
}


def sglang_sampling(body: GenerateRequest, temperature: float, vocabulary: int, limit: int) -> Sampling:
    """A limit beyond the context is the context, as in SGLang."""
    _refuse_unsupported(body)
    params = body.sampling_params
    _refuse_unsupported(params)
    return _sampling(
        params,
        temperature=temperature,
        vocabulary=vocabulary,
        max_tokens=params.max_new_tokens or limit,
        min_tokens=params.min_new_tokens or 0,
        seed=params.sampling_seed,
        top_logprobs=(body.top_logprobs_num or 0) if body.return_logprob else 0,
    )


def completion_sampling(body: CompletionRequest, temperature: float, vocabulary: int) -> Sampling:
    _check_openai(body)
    limit = _OPENAI_TOKENS if body.max_tokens is None else body.max_tokens
    if limit == 0 and not body.echo:
        raise BadRequestError("max_tokens 0 needs echo: there would be nothing to return")
    alternatives = 0 if isinstance(body.logprobs, bool) else body.logprobs or 0
    return _openai_sampling(body, temperature, vocabulary, limit, alternatives)


def chat_sampling(body: ChatRequest, temperature: float, vocabulary: int, room: int) -> Sampling:
    _check_openai(body)
    if body.chat_template is not None:
        raise BadRequestError("chat_template is not accepted: prompts are rendered with the model's own template")
    if body.modalities not in (None, ["text"]):
        raise BadRequestError("modalities: only text is supported")
    if body.top_logprobs and not body.logprobs:
        raise BadRequestError("top_logprobs needs logprobs: true")
    if body.tool_choice not in (None, "auto", "none"):
        raise BadRequestError("tool_choice: only auto and none are supported")
    given = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if given == 0:
        raise BadRequestError("max_tokens must be at least 1")
    return _openai_sampling(body, temperature, vocabulary, room if given is None else given, body.top_logprobs or 0)


def _check_openai(body: OpenAiRequest) -> None:
    _refuse_unsupported(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadRequestError("best_of is not supported: use n")
    if body.response_format is not None and body.response_format.type != "text":
        raise BadRequestError(f"response_format {body.response_format.type} is not supported: only text is")
    if not body.skip_special_tokens:
        raise BadRequestError("skip_special_tokens: false is not supported; read token_ids instead")
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("stream_options needs stream: true")


def _refuse_unsupported(body: Struct) -> None:
    for kind, names in _UNSUPPORTED.items():
        if isinstance(body, kind):
            for name in names:
                if getattr(body, name):
                    raise BadRequestError(f"{name} is not supported")


def _openai_sampling(
    body: OpenAiRequest, temperature: float, vocabulary: int, max_tokens: int, top_logprobs: int
) -> Sampling:
    return _sampling(
        body,
        temperature=temperature,
        vocabulary=vocabulary,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        seed=body.seed,
        top_logprobs=top_logprobs,
    )


def _sampling(
    body: _Shared,
    *,
    temperature: float,
    vocabulary: int,
    max_tokens: int,
    min_tokens: int,
    seed: int | None,
    top_logprobs: int,
) -> Sampling:
    texts, tokens = split_stops(body.stop, body.stop_token_ids)
    return Sampling(
        max_tokens=max_tokens,
        temperature=temperature if body.temperature is None else body.temperature,
        top_p=body.top_p or 1.0,
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        min_tokens=min_tokens,
        ignore_end=bool(body.ignore_eos),
        stop=texts,
        stop_tokens=tokens,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        logit_bias=_biases(body.logit_bias or {}, vocabulary),
        seed=seed,
        top_logprobs=top_logprobs,
    )


def _biases(given: dict[str, float], vocabulary: int) -> tuple[tuple[int, float], ...]:
    for name in given:
        if not name.isdecimal() or int(name) >= vocabulary:
            raise BadRequestError(f"logit_bias: {name[:40]!r} is no token id in 0..{vocabulary - 1}")
    return tuple((int(name), bias) for name, bias in given.items())


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
