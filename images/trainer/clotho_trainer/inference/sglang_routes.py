"""SGLang's `/generate`, whole and streamed: the route that Atropos' managed servers use."""

from collections.abc import AsyncIterator

from aiohttp import web

from clotho_trainer.inference import answers
from clotho_trainer.inference.answers import LogprobForm, Scored
from clotho_trainer.inference.core.engine import Sampling
from clotho_trainer.inference.requests import GenerateRequest, generate_prompt, is_several, sglang_sampling
from clotho_trainer.inference.responses import json_response
from clotho_trainer.inference.service import Service
from clotho_trainer.inference.streaming import send_events


async def generate(request: web.Request, service: Service, body: GenerateRequest) -> web.StreamResponse:
    prompt, n = generate_prompt(body), body.sampling_params.n or 1
    sampling = sglang_sampling(body, service.temperature, service.vocabulary, service.context)
    prompts = service.token_lists(prompt)
    scores = await _prompt_scores(service, body, prompts, sampling)
    if body.stream:
        return await send_events(request, _events(service, body, prompts, sampling))
    samples = await service.sample(prompts, sampling, n)
    form = _logprob_form(body)
    results = [
        answers.sglang(completion, len(tokens), form, prompt=scored)
        for tokens, scored, completions in zip(prompts, scores, samples, strict=True)
        for completion in completions
    ]
    is_single = len(results) == 1 and not is_several(prompt)
    return json_response(results[0] if is_single else results, [each for group in samples for each in group])


def _logprob_form(body: GenerateRequest) -> LogprobForm:
    if not body.return_logprob:
        return LogprobForm.NONE
    return LogprobForm.FLAT if body.flat_logprobs else LogprobForm.PAIRS


async def _prompt_scores(
    service: Service, body: GenerateRequest, prompts: list[list[int]], sampling: Sampling
) -> list[Scored] | list[None]:
    start = -1 if body.logprob_start_len is None else body.logprob_start_len
    if not body.return_logprob or start < 0:
        return [None] * len(prompts)
    scores = await service.score(prompts, sampling.top_logprobs)
    return [Scored(each.tokens[start:], each.logprobs[start:], each.top_logprobs[start:]) for each in scores]


async def _events(
    service: Service, body: GenerateRequest, prompts: list[list[int]], sampling: Sampling
) -> AsyncIterator[object]:
    """Every event has the whole text so far, as SGLang's do."""
    n, form = body.sampling_params.n or 1, _logprob_form(body)
    texts = [""] * (n * len(prompts))
    scored = [Scored((), ())] * (n * len(prompts))
    async for piece in service.stream(prompts, sampling, n).pieces():
        prompt_tokens = len(prompts[piece.index // n])
        texts[piece.index] += piece.text
        scored[piece.index] += piece.scored
        if piece.completion:
            service.count([piece.completion])
            answer = answers.sglang(piece.completion, prompt_tokens, form)
        else:
            answer = answers.sglang_part(texts[piece.index], scored[piece.index], prompt_tokens, form)
        yield answer | {"index": piece.index}
