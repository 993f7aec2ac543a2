"""The fast engine against the Hugging Face modules, on the CPU: the same numbers, whatever else is in the batch."""

import asyncio
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from msgspec import structs

from clotho_contract.config import RunConfig
from clotho_contract.settings import Inference
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.choice import choose_engine
from clotho_trainer.inference.core.engine import Completion, Delta, Request, Sampling
from clotho_trainer.inference.paged.engine import FastEngine
from clotho_trainer.inference.transformers.engine import TransformersEngine
from clotho_trainer.model.architecture import unsupported_reason
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.training.batch import prepare
from integration.trainer import fast_policies
from integration.trainer.fast_policies import ARCHITECTURES, greedy, nudge, policy, reference_logprobs
from integration.trainer.tiny import backend, config, groups

PROMPTS = [tuple(5 + (3 * index + 7 * length) % 50 for index in range(length)) for length in (2, 16, 9, 33, 1)]


@asynccontextmanager
async def serving(live: LiveWeights, **options: int | bool) -> AsyncIterator[FastEngine]:
    engine = fast_policies.engine(live, **options)  # type: ignore[arg-type]
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def sample(engine: FastEngine, prompt: tuple[int, ...], **sampling: object) -> Completion:
    return (await engine.generate(Request(prompt, Sampling(**sampling))))[0]  # type: ignore[arg-type]


def prompts_read(engine: FastEngine) -> list[list[int]]:
    """The lengths of the prompts of each pass from now on."""
    passes: list[list[int]] = []
    original = engine._decoder.prefill

    def watched(prompts: Sequence[Sequence[int]], tables: Sequence[Sequence[int]]) -> torch.Tensor:
        passes.append([len(prompt) for prompt in prompts])
        return original(prompts, tables)

    engine._decoder.prefill = watched  # type: ignore[method-assign]
    return passes


async def check_against_modules(live: LiveWeights, tolerance: float = 1e-5) -> None:
    """Ragged prompts with common prefixes, sampled and greedy, in one batch."""
    async with serving(live) as engine:
        requests = [
            Request(prompt, Sampling(max_tokens=20, temperature=t, ignore_end=True), n=2)
            for prompt in PROMPTS
            for t in (0.7, 0.0)
        ]
        answers = await asyncio.gather(*(engine.generate(request) for request in requests))
    for request, completions in zip(requests, answers, strict=True):
        temperature = request.sampling.temperature
        for completion in completions:
            assert len(completion.tokens) == 20
            expected = reference_logprobs(live, request.prompt, completion, temperature)
            assert completion.logprobs == pytest.approx(expected, abs=tolerance)
            if temperature == 0:
                assert completion.tokens == greedy(live, request.prompt, 20)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_log_probabilities_and_greedy_tokens_are_those_of_the_modules(architecture: str) -> None:
    live = policy(architecture)
    assert unsupported_reason(live.model) is None
    await check_against_modules(live)


@pytest.mark.parametrize("adapts", [["q_proj", "up_proj"], None], ids=["some layers adapted", "all weights trained"])
async def test_partly_adapted_and_fully_trained_models_are_served(adapts: list[str] | None) -> None:
    live = policy("qwen3", adapts=adapts)
    await check_against_modules(live)
    nudge(live)
    await check_against_modules(live)


def test_the_kernels_give_the_same_numbers() -> None:
    run_program("integration.trainer.fast_kernels")


def test_the_kernel_for_hopper_compiles_and_fits_into_its_memory() -> None:
    run_program("integration.trainer.compiled_kernels")


def test_a_decoder_compiles_its_kernels_before_it_launches_one() -> None:
    run_program("integration.trainer.compiled_together")


def run_program(module: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]


async def test_samples_follow_the_distribution() -> None:
    live = policy("qwen3")
    async with serving(live, rows=256, blocks=300) as engine:
        completions = await engine.generate(Request((5, 6, 7), Sampling(max_tokens=2, ignore_end=True), n=2000))
    commonest = Counter(completion.tokens[0] for completion in completions).most_common(1)[0][0]
    followers = [completion for completion in completions if completion.tokens[0] == commonest]
    for token, count in Counter(completion.tokens[1] for completion in followers).items():
        expected = math.exp(next(c.logprobs[1] for c in followers if c.tokens[1] == token))
        share, deviation = count / len(followers), (expected / len(followers)) ** 0.5
        assert abs(share - expected) < 5 * deviation + 2 / len(followers)


async def test_sequences_that_start_and_finish_at_different_times_are_independent() -> None:
    live = policy("qwen3")
    expected = [greedy(live, prompt, 4 + 7 * index) for index, prompt in enumerate(PROMPTS)]
    async with serving(live, rows=3) as engine:

        async def late(index: int) -> Completion:
            for _ in range(index):
                await sample(engine, (7,), max_tokens=1)
            return await sample(engine, PROMPTS[index], max_tokens=4 + 7 * index, temperature=0.0, ignore_end=True)

        together = await asyncio.gather(*(late(index) for index in range(len(PROMPTS))))
    assert [completion.tokens for completion in together] == expected


async def test_the_same_is_sampled_whether_or_not_the_host_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    live = policy("qwen3")
    request = Request(PROMPTS[2], Sampling(max_tokens=30, ignore_end=True), n=5)
    async with serving(live) as engine:
        ahead = await engine.generate(request)
    monkeypatch.setattr(FastEngine, "_run_ahead", lambda engine: None)
    async with serving(live) as engine:
        assert await engine.generate(request) == ahead


async def test_preempted_sequences_lose_nothing() -> None:
    """Six blocks of 16 tokens hold hardly two of these four sequences."""
    live = policy("qwen3")
    prompts = [prompt[:9] for prompt in PROMPTS[1:4]] + [PROMPTS[0]]
    async with serving(live, blocks=7) as engine:
        answers = await asyncio.gather(
            *(sample(engine, prompt, max_tokens=40, temperature=0.0, ignore_end=True) for prompt in prompts)
        )
        assert engine._scheduler.free_blocks == 6, "every block was freed"
    assert [answer.tokens for answer in answers] == [greedy(live, prompt, 40) for prompt in prompts]


@pytest.mark.parametrize("cache_in_fp8", [False, True], ids=["16 bits", "8 bits"])
async def test_answers_to_a_prompt_that_was_read_before_are_those_to_a_new_one(cache_in_fp8: bool) -> None:
    """Prompts of one token, of whole blocks and of more, asked one by one: only the first time each is read."""
    live = policy("qwen3")
    async with serving(live, cache_in_fp8=cache_in_fp8) as engine:
        read = prompts_read(engine)
        new, known, again = [
            [await sample(engine, prompt, max_tokens=20, temperature=t, ignore_end=True) for prompt in PROMPTS]
            for t in (0.0, 0.7, 0.0)
        ]
    assert read == [[len(prompt)] for prompt in PROMPTS]
    for prompt, first, sampled, second in zip(PROMPTS, new, known, again, strict=True):
        assert second.tokens == first.tokens
        assert second.logprobs == pytest.approx(first.logprobs, abs=1e-5)
        if not cache_in_fp8:
            assert sampled.logprobs == pytest.approx(reference_logprobs(live, prompt, sampled, 0.7), abs=1e-5)


@pytest.mark.timeout(60)
async def test_known_prompts_join_a_long_answer_at_any_step() -> None:
    live = policy("qwen3")
    async with serving(live) as engine:
        await sample(engine, PROMPTS[2], max_tokens=1)
        long = asyncio.create_task(sample(engine, PROMPTS[0], max_tokens=90, temperature=0.0, ignore_end=True))
        known = [
            await sample(engine, PROMPTS[2], max_tokens=2, temperature=0.0, ignore_end=True)
            for _ in range(8)
            if not long.done()
        ]
        assert len(known) > 1, "they were asked while it ran"
        assert (await long).tokens == greedy(live, PROMPTS[0], 90)
    assert {completion.tokens for completion in known} == {greedy(live, PROMPTS[2], 2)}


async def test_a_common_prompt_is_read_once_and_its_blocks_are_shared() -> None:
    live = policy("qwen3")
    async with serving(live) as engine:
        read = prompts_read(engine)
        prompt = PROMPTS[3]
        completions = await engine.generate(Request(prompt, Sampling(max_tokens=8, ignore_end=True), n=8))
    assert read == [[len(prompt)]]
    for completion in completions:
        assert completion.logprobs == pytest.approx(reference_logprobs(live, prompt, completion, 1.0), abs=1e-5)


async def test_generation_stops_at_limit_token_and_string() -> None:
    live = policy("qwen3")
    prompt = PROMPTS[2]
    async with serving(live) as engine:
        free = await sample(engine, prompt, max_tokens=20, temperature=0.0, ignore_end=True)
        assert (len(free.tokens), free.finish_reason) == (20, "length")
        token = free.tokens[11]
        by_token = await sample(
            engine, prompt, max_tokens=20, temperature=0.0, ignore_end=True, stop_tokens=frozenset({token})
        )
        assert by_token.finish_reason == "stop"
        assert by_token.tokens == free.tokens[: free.tokens.index(token) + 1]
        word = free.text[9:11]
        by_text = await sample(engine, prompt, max_tokens=20, temperature=0.0, ignore_end=True, stop=(word,))
        assert (by_text.finish_reason, by_text.stop_string) == ("stop", word)
        assert by_text.text == free.text[: free.text.index(word)]
        longer = await sample(engine, prompt, max_tokens=12, min_tokens=12)
        assert len(longer.tokens) == 12
        cut = await sample(engine, prompt, max_tokens=20, top_k=1, ignore_end=True)
        assert cut.tokens == free.tokens
    with pytest.raises(ValueError, match="the prompt has 96 tokens; the model's context is 96"):
        await fast_policies.engine(live).generate(Request((5,) * 96, Sampling()))


async def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch() -> None:
    live = policy("qwen3")
    seeded = Request(PROMPTS[0], Sampling(max_tokens=20, ignore_end=True, seed=5), n=2)
    async with serving(live) as engine:
        alone = await engine.generate(seeded)
        others = Request(PROMPTS[3], Sampling(max_tokens=30, ignore_end=True), n=4)
        together, _ = await asyncio.gather(engine.generate(seeded), engine.generate(others))
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert alone[0].tokens != alone[1].tokens
    for completion in together:
        assert completion.logprobs == pytest.approx(reference_logprobs(live, PROMPTS[0], completion, 1.0), abs=1e-5)


async def test_biases_penalties_and_alternatives() -> None:
    live = policy("qwen3")
    async with serving(live) as engine:
        biased = await sample(engine, PROMPTS[0], max_tokens=5, ignore_end=True, logit_bias=((9, 100.0),))
        assert biased.tokens == (9,) * 5
        expected = reference_logprobs(live, PROMPTS[0], biased, 1.0)
        assert biased.logprobs == pytest.approx(expected, abs=1e-5), "the policy's own, without the bias"
        penalised = await sample(
            engine, PROMPTS[0], max_tokens=20, temperature=0.0, ignore_end=True, repetition_penalty=1e6
        )
        assert len(set(penalised.tokens)) == 20
        listed = await sample(engine, PROMPTS[0], max_tokens=5, temperature=0.0, ignore_end=True, top_logprobs=3)
    for token, logprob, top in zip(listed.tokens, listed.logprobs, listed.top_logprobs, strict=True):
        assert len(top) == 3
        assert top[0] == (token, pytest.approx(logprob)), "greedy takes the likeliest"


async def test_streamed_deltas_add_up_to_the_completion() -> None:
    live = policy("qwen3")
    deltas: list[Delta] = []
    async with serving(live) as engine:
        request = Request(PROMPTS[1], Sampling(max_tokens=30, ignore_end=True), n=2, on_delta=deltas.append)
        completions = await engine.generate(request)
    for index, completion in enumerate(completions):
        streamed = [token for delta in deltas if delta.index == index for token in delta.tokens]
        assert 0 < len(streamed) < 30, "the last tokens come with the completion"
        assert tuple(streamed) == completion.tokens[: len(streamed)]


async def test_given_tokens_are_scored_while_others_are_sampled() -> None:
    live = policy("qwen3")
    async with serving(live) as engine:
        (completion,), scores = await asyncio.gather(
            engine.generate(Request(PROMPTS[1], Sampling(max_tokens=30, ignore_end=True))),
            engine.score(PROMPTS[3], 2),
        )
        prompt = PROMPTS[1] + completion.tokens
        again = await engine.score(prompt, 0)
    assert again.logprobs[len(PROMPTS[1]) :] == pytest.approx(completion.logprobs, abs=1e-4)
    assert (scores.logprobs[0], len(scores.logprobs), len(scores.top_logprobs)) == (None, 33, 33)
    assert again.top_logprobs == ()


async def test_cancelled_requests_are_not_decoded() -> None:
    live = policy("qwen3")
    async with serving(live) as engine:
        long = asyncio.create_task(engine.generate(Request((5, 6), Sampling(max_tokens=90, ignore_end=True), n=4)))
        await asyncio.sleep(0)
        await sample(engine, (5,), max_tokens=1)
        long.cancel()
        await sample(engine, (5,), max_tokens=2, ignore_end=True)
        await sample(engine, (5,), max_tokens=2, ignore_end=True)
        assert all(s.request.prompt != (5, 6) for s in engine._scheduler.running)
        assert engine._scheduler.free_blocks == 63


@pytest.mark.parametrize("drains", [False, True])
async def test_weight_updates_during_a_sequence_continue_or_drain_it(drains: bool) -> None:
    """Either the sequence continues with the new ones, and its versions show it, or it is finished first."""
    live = policy("qwen3")
    async with serving(live, drains=drains) as engine:
        running = asyncio.create_task(engine.generate(Request((5, 6), Sampling(max_tokens=90, ignore_end=True), n=2)))
        await asyncio.sleep(0)
        await sample(engine, (5,), max_tokens=1)  # by now it has begun
        await asyncio.to_thread(nudge, live)
        after = await sample(engine, (5, 6), max_tokens=4, ignore_end=True)
        completions = await running
    assert after.version == 1
    assert after.logprobs == pytest.approx(reference_logprobs(live, (5, 6), after, 1.0), abs=1e-5)
    for completion in completions:
        assert sum(count for _, count in completion.versions) == 90
        versions = [version for version, _ in completion.versions]
        assert versions == ([0] if drains else [0, 1])


def test_an_unsupported_model_has_a_reason() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    sliding = MistralForCausalLM(MistralConfig(**small, **heads, sliding_window=8))  # type: ignore[arg-type]
    assert unsupported_reason(sliding) == "some layers attend to a sliding window"


def with_engine(config: RunConfig, engine: str) -> RunConfig:
    return structs.replace(config, inference=Inference(engine=engine))  # type: ignore[arg-type]


async def test_weights_that_became_views_are_saved_and_restored(model: Path, tmp_path: Path) -> None:
    """All weights are trained: the checkpoint holds each of them, and what is restored is what is served."""
    settings = with_engine(config(model, rank=0), "fast")
    first = backend(settings, tmp_path)
    assert isinstance(first.engine, FastEngine)
    first.step(prepare(groups(0), first.rules, 0), 1e-2)
    first.save(tmp_path / "saved")
    second = backend(settings, tmp_path)
    second.restore(tmp_path / "saved", 1)
    answers = []
    for policy_now in (first, second):
        await policy_now.engine.start()
        request = Request((5, 6, 7), Sampling(max_tokens=10, temperature=0.0, ignore_end=True))
        answers.append((await policy_now.engine.generate(request))[0])
        await policy_now.engine.stop()
    assert answers[0] == answers[1]
    assert answers[0].tokens == greedy(second.live, (5, 6, 7), 10)


def test_the_engine_follows_device_setting_and_architecture(model: Path, tmp_path: Path) -> None:
    assert isinstance(backend(config(model), tmp_path).engine, TransformersEngine), "on a CPU"
    assert isinstance(backend(with_engine(config(model), "fast"), tmp_path).engine, FastEngine)
    live = policy("qwen3")
    live.model.get_base_model().config.model_type = "gemma3"
    with pytest.raises(TrainerError, match=r"engine fast cannot serve .*: the architecture gemma3 is not among"):
        choose_engine(with_engine(config(model), "fast"), live, frozenset(), tmp_path)
