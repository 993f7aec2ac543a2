"""OpenAI's `/v1/completions` and `/v1/chat/completions`, whole and streamed."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from aiohttp import web

from clotho_trainer.inference import answers, chat
from clotho_trainer.inference.answers import Envelope, Scored
from clotho_trainer.inference.core.engine import Completion, Sampling
from clotho_trainer.inference.requests import (
    ChatRequest,
    CompletionRequest,
    OpenAiRequest,
    chat_sampling,
    completion_sampling,
)
from clotho_trainer.inference.responses import json_response
from clotho_trainer.inference.service import Service
from clotho_trainer.inference.streaming import Piece, send_events

_NOTHING_SAMPLED = Completion(tokens=(), logprobs=(), text="", finish_reason="length", versions=())


async def completions(request: web.Request, service: Service, body: CompletionRequest) -> web.StreamResponse:
    service.check_model(body.model)
    sampling = completion_sampling(body, service.temperature, service.vocabulary)
    prompts = service.token_lists(body.prompt)
    for prompt in prompts:
        service.check_limit(prompt, max(sampling.max_tokens, 1))
    echoes = await _echoes(service, body, prompts, sampling)
    if body.stream:
        return await send_events(request, _completion_events(service, body, prompts, sampling, echoes))
    samples = await _samples(service, body, prompts, sampling)
    choices: list[dict[str, Any]] = []
    for prompt, echo, group in zip(prompts, echoes, samples, strict=True):
        for completion in group:
            text, scored = echo.text + completion.text, echo.scored + Scored.of(completion)
            logprobs = answers.text_logprobs(scored, service.decode) if _has_logprobs(body) else None
            choices.append(answers.choice(len(choices), completion, prompt) | {"text": text, "logprobs": logprobs})
    flat = [completion for group in samples for completion in group]
    envelope = Envelope("text_completion", service.model)
    return json_response(envelope.wrap(choices, answers.usage(prompts, flat)), flat)


async def chat_completions(request: web.Request, service: Service, body: ChatRequest) -> web.StreamResponse:
    service.check_model(body.model)
    text = await chat.render(service.tokenizer, service.model, body)
    prompt = service.check_tokens(service.tokenizer(text, add_special_tokens=False)["input_ids"])
    room = max(service.context - len(prompt), 1)
    sampling = chat_sampling(body, service.temperature, service.vocabulary, room)
    service.check_limit(prompt, sampling.max_tokens)
    if body.stream:
        return await send_events(request, _chat_events(service, body, prompt, sampling))
    (samples,) = await service.sample([prompt], sampling, body.n or 1)
    choices = [_chat_choice(service, body, prompt, index, each) for index, each in enumerate(samples)]
    envelope = Envelope("chat.completion", service.model)
    return json_response(envelope.wrap(choices, answers.usage([prompt], samples)), samples)


class _Echo:
    """The prompt in front of the answer, where the request asked for it."""

    def __init__(self, text: str = "", scored: Scored | None = None) -> None:
        self.text = text
        self.scored = scored or Scored((), ())


async def _echoes(
    service: Service, body: CompletionRequest, prompts: list[list[int]], sampling: Sampling
) -> list[_Echo]:
    if not body.echo:
        return [_Echo()] * len(prompts)
    texts = [str(service.tokenizer.decode(prompt)) for prompt in prompts]
    if not _has_logprobs(body):
        return [_Echo(text) for text in texts]
    scores = await service.score(prompts, sampling.top_logprobs)
    return [_Echo(text, scored) for text, scored in zip(texts, scores, strict=True)]


async def _samples(
    service: Service, body: CompletionRequest, prompts: list[list[int]], sampling: Sampling
) -> list[list[Completion]]:
    if sampling.max_tokens == 0:
        return [[_NOTHING_SAMPLED] * (body.n or 1) for _ in prompts]
    return await service.sample(prompts, sampling, body.n or 1)


def _has_logprobs(body: CompletionRequest) -> bool:
    return body.logprobs is not None and body.logprobs is not False


def _chat_choice(
    service: Service, body: ChatRequest, prompt: list[int], index: int, completion: Completion
) -> dict[str, Any]:
    message = chat.answer_message(completion.text, body)
    logprobs = answers.chat_logprobs(Scored.of(completion), service.decode) if body.logprobs else None
    finished = answers.choice(index, completion, prompt) | {"message": message, "logprobs": logprobs}
    return finished | {"finish_reason": _finish_reason(completion, message)}


def _finish_reason(completion: Completion, message: dict[str, Any]) -> str:
    return "tool_calls" if "tool_calls" in message else completion.finish_reason


async def _completion_events(
    service: Service, body: CompletionRequest, prompts: list[list[int]], sampling: Sampling, echoes: list[_Echo]
) -> AsyncIterator[object]:
    envelope, n = Envelope("text_completion", service.model), body.n or 1
    offsets = [len(echo.text) for echo in echoes for _ in range(n)]
    done: list[Completion] = []
    for index in range(n * len(prompts)):
        if (echo := echoes[index // n]).text:
            logprobs = answers.text_logprobs(echo.scored, service.decode) if _has_logprobs(body) else None
            entry = {"index": index, "text": echo.text, "logprobs": logprobs}
            reason = "length" if sampling.max_tokens == 0 else None
            yield envelope.wrap([entry | {"finish_reason": reason}])
    if sampling.max_tokens:
        async for piece in service.stream(prompts, sampling, n).pieces():
            logprobs = None
            if _has_logprobs(body):
                logprobs = answers.text_logprobs(piece.scored, service.decode, offsets[piece.index])
                offsets[piece.index] += sum(map(len, logprobs["tokens"]))
            entry = {"index": piece.index, "text": piece.text, "logprobs": logprobs, **_end_of(piece)}
            done += _finished(service, piece)
            yield envelope.wrap([entry])
    if _wants_usage(body):
        yield envelope.wrap([], answers.usage(prompts, done))


async def _chat_events(
    service: Service, body: ChatRequest, prompt: list[int], sampling: Sampling
) -> AsyncIterator[object]:
    """With tools the text is held back to its end: only then is it known what is a call."""
    envelope = Envelope("chat.completion.chunk", service.model)
    holds_text = bool(body.tools) and body.tool_choice != "none"
    started: set[int] = set()
    done: list[Completion] = []
    async for piece in service.stream([prompt], sampling, body.n or 1).pieces():
        delta: dict[str, Any] = {} if piece.index in started else {"role": "assistant", "content": ""}
        started.add(piece.index)
        end = _end_of(piece)
        if piece.completion and holds_text:
            message = chat.answer_message(piece.completion.text, body)
            calls = [call | {"index": place} for place, call in enumerate(message.get("tool_calls", ()))]
            delta |= {"content": message["content"]} | ({"tool_calls": calls} if calls else {})
            end |= {"finish_reason": _finish_reason(piece.completion, message)}
        elif piece.text and not holds_text:
            delta["content"] = piece.text
        logprobs = answers.chat_logprobs(piece.scored, service.decode) if body.logprobs else None
        done += _finished(service, piece)
        yield envelope.wrap([{"index": piece.index, "delta": delta, "logprobs": logprobs, **end}])
    if _wants_usage(body):
        yield envelope.wrap([], answers.usage([prompt], done))


def _end_of(piece: Piece) -> dict[str, Any]:
    if piece.completion is None:
        return {"finish_reason": None, "token_ids": piece.scored.tokens}
    end = {"finish_reason": piece.completion.finish_reason, "stop_reason": piece.completion.stop_string}
    return end | {"token_ids": piece.scored.tokens} | answers.versions(piece.completion)


def _finished(service: Service, piece: Piece) -> Sequence[Completion]:
    if piece.completion is None:
        return ()
    service.count([piece.completion])
    return (piece.completion,)


def _wants_usage(body: OpenAiRequest) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)
