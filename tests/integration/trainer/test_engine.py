"""The engine on the live weights: exact log-probabilities, ragged batches, stops, and exact versions."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from clotho_trainer.inference.core.engine import Completion, Request, Sampling
from clotho_trainer.model import tiny
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer.tiny import backend, config, groups, with_model


@pytest.fixture
async def policy(model: Path, tmp_path: Path) -> AsyncIterator[LocalBackend]:
    """After two steps, so that the adapter is not zero."""
    loaded = backend(config(model), tmp_path)
    for seed in range(2):
        loaded.step(prepare(groups(seed), loaded.rules, loaded.version), 5e-2)
    await loaded.engine.start()
    yield loaded
    await loaded.engine.stop()


def training_logprobs(
    policy: LocalBackend, prompt: tuple[int, ...], completion: Completion, temperature: float
) -> list[float]:
    """By the forward pass that training uses, PEFT's own layers and all."""
    ids = torch.tensor([[*prompt, *completion.tokens]])
    lowered = torch.autocast("cpu", torch.bfloat16, enabled=policy._live.compute_dtype == torch.bfloat16)
    with policy._live.training(), torch.no_grad(), lowered:
        logits = policy._live.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    tokens = ids[0, len(prompt) :, None]
    return logits.log_softmax(-1).gather(-1, tokens).squeeze(-1).tolist()


async def test_log_probabilities_are_those_that_training_computes(policy: LocalBackend) -> None:
    prompts = [tuple(range(5, 5 + length)) for length in (2, 9, 4, 4)]
    requests = [Request(prompt, Sampling(max_tokens=12, temperature=0.7), n=3) for prompt in prompts]
    answers = await asyncio.gather(*(policy.engine.generate(request) for request in requests))
    for prompt, completions in zip(prompts, answers, strict=True):
        assert len(completions) == 3
        for completion in completions:
            expected = training_logprobs(policy, prompt, completion, 0.7)
            assert completion.logprobs == pytest.approx(expected, abs=2e-5)


async def test_bfloat16_log_probabilities_agree_within_its_precision(model: Path, tmp_path: Path) -> None:
    policy = backend(with_model(config(model), dtype="bfloat16"), tmp_path)
    policy.step(prepare(groups(0), policy.rules, 0), 5e-2)
    await policy.engine.start()
    completions = await policy.engine.generate(Request((5, 6, 7), Sampling(max_tokens=30, ignore_end=True), n=8))
    await policy.engine.stop()
    expected = [training_logprobs(policy, (5, 6, 7), completion, 1.0) for completion in completions]
    differences = torch.tensor([completion.logprobs for completion in completions]) - torch.tensor(expected)
    assert differences.abs().mean() < 0.03
    assert differences.abs().max() < 0.3


async def test_requests_that_start_and_finish_at_different_times_are_independent(policy: LocalBackend) -> None:
    """Sequences of many lengths join and leave the same batch; greedy answers stay what they are alone."""
    prompts = [tuple(range(6, 6 + length)) for length in (3, 11, 5, 2, 8)]
    greedy = [Request(prompt, Sampling(max_tokens=4 + 5 * i, temperature=0.0)) for i, prompt in enumerate(prompts)]
    alone = [(await policy.engine.generate(request))[0].tokens for request in greedy]

    async def late(request: Request, delay: int) -> Completion:
        for _ in range(delay):
            await policy.engine.generate(Request((7,), Sampling(max_tokens=1)))
        return (await policy.engine.generate(request))[0]

    together = await asyncio.gather(*(late(request, i) for i, request in enumerate(greedy)))
    assert [completion.tokens for completion in together] == alone


async def test_more_sequences_than_fit_are_served_in_turn(model: Path, tmp_path: Path) -> None:
    from msgspec import structs

    from clotho_contract.settings import Inference

    settings = structs.replace(config(model), inference=Inference(max_batch_size=3))
    policy = backend(settings, tmp_path)
    await policy.engine.start()
    completions = await policy.engine.generate(Request((5, 6), Sampling(max_tokens=3, ignore_end=True), n=8))
    await policy.engine.stop()
    assert [len(completion.tokens) for completion in completions] == [3] * 8


async def test_generation_stops_at_limit_token_and_string(policy: LocalBackend) -> None:
    async def sample(sampling: Sampling) -> Completion:
        return (await policy.engine.generate(Request((5, 6, 7), sampling)))[0]

    free = await sample(Sampling(max_tokens=20, temperature=0.0, ignore_end=True))
    assert (len(free.tokens), free.finish_reason) == (20, "length")

    by_token = await sample(
        Sampling(max_tokens=20, temperature=0.0, ignore_end=True, stop_tokens=frozenset({free.tokens[4]}))
    )
    assert by_token.finish_reason == "stop"
    assert by_token.tokens == free.tokens[: free.tokens.index(free.tokens[4]) + 1]

    word = free.text[3:5]
    by_text = await sample(Sampling(max_tokens=20, temperature=0.0, ignore_end=True, stop=(word,)))
    assert (by_text.finish_reason, by_text.stop_string) == ("stop", word)
    end = free.text.index(word)
    assert by_text.text == free.text[:end]
    kept = tiny.make_tokenizer().decode(by_text.tokens, skip_special_tokens=True)
    assert kept == free.text[: end + len(word)], "the tokens keep what was sampled"


async def test_the_end_token_waits_for_the_least_number_of_tokens(policy: LocalBackend) -> None:
    request = Request((5, 6, 7), Sampling(max_tokens=12, min_tokens=12), n=40)
    assert {len(completion.tokens) for completion in await policy.engine.generate(request)} == {12}


async def test_top_k_of_one_is_greedy(policy: LocalBackend) -> None:
    greedy, *cut = [
        (await policy.engine.generate(Request((9, 8), sampling)))[0].tokens
        for sampling in (
            Sampling(max_tokens=6, temperature=0.0),
            Sampling(max_tokens=6, top_k=1),
            Sampling(max_tokens=6, top_p=1e-6),
        )
    ]
    assert cut == [greedy, greedy]


async def test_a_prompt_beyond_the_context_is_refused(policy: LocalBackend) -> None:
    with pytest.raises(ValueError, match="the prompt has 512 tokens; the model's context is 512"):
        await policy.engine.generate(Request((5,) * 512, Sampling()))


async def test_every_sample_comes_from_the_newest_weights(policy: LocalBackend) -> None:
    before = (await policy.engine.generate(Request((5, 6), Sampling(max_tokens=2))))[0]
    await asyncio.to_thread(policy.step, prepare(groups(9), policy.rules, 2), 1e-2)
    after = (await policy.engine.generate(Request((5, 6), Sampling(max_tokens=2))))[0]
    assert (before.version, after.version) == (2, 3)
    assert after.logprobs == pytest.approx(training_logprobs(policy, (5, 6), after, 1.0), abs=2e-5)


async def test_weights_that_change_under_a_sequence_are_booked_token_by_token(policy: LocalBackend) -> None:
    running = asyncio.create_task(
        policy.engine.generate(Request((5, 6), Sampling(max_tokens=400, ignore_end=True), n=2))
    )
    await policy.engine.generate(Request((5,), Sampling(max_tokens=1)))  # by now it has begun
    await asyncio.to_thread(policy.step, prepare(groups(9), policy.rules, 2), 1e-2)
    for completion in await running:
        assert [version for version, _ in completion.versions] == [2, 3]
        assert sum(count for _, count in completion.versions) == 400
        assert completion.version == 2, "the stamp is the oldest"


async def test_cancelled_requests_are_not_decoded(policy: LocalBackend) -> None:
    long = asyncio.create_task(policy.engine.generate(Request((5, 6), Sampling(max_tokens=500, ignore_end=True))))
    await policy.engine.generate(Request((5,), Sampling(max_tokens=1)))
    long.cancel()
    await policy.engine.generate(Request((5,), Sampling(max_tokens=2, ignore_end=True)))
    await policy.engine.generate(Request((5,), Sampling(max_tokens=2, ignore_end=True)))
    assert all(sequence.request.prompt != (5, 6) for sequence in policy.engine._scheduler.running)  # type: ignore[attr-defined]
