"""A key-value cache in 8 bits: the engine answers as with an exact one, but for rounding, in the CPU's arithmetic."""

import asyncio
from pathlib import Path

import pytest
import torch
from msgspec import structs

from clotho_contract.config import RunConfig
from clotho_contract.settings import Inference
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference import choice
from clotho_trainer.inference.choice import choose_engine
from clotho_trainer.inference.core.engine import Completion, Request, Sampling
from clotho_trainer.inference.paged.cache import Cache, CacheShape
from clotho_trainer.inference.paged.engine import FastEngine
from clotho_trainer.inference.paged.weights import PolicyWeights
from clotho_trainer.model.live import LiveWeights
from integration.trainer import fast_policies
from integration.trainer.fast_policies import ARCHITECTURES, CONTEXT, policy, reference_logprobs
from integration.trainer.tiny import config
from rig.rounded_attention import round_keys_and_values, with_own_scales

PROMPTS = [(5, 6, 7, 8, 9, 10, 11, 12, 13), (14,), tuple(range(5, 40))]


def with_cache(model: Path, engine: str, dtype: str = "fp8", rows: int = 16) -> RunConfig:
    inference = Inference(engine=engine, kv_cache_dtype=dtype, max_batch_size=rows)  # type: ignore[arg-type]
    return structs.replace(config(model), inference=inference)


async def answers(live: LiveWeights, sampling: Sampling, *, n: int = 1, **options: int | bool) -> list[Completion]:
    engine = fast_policies.engine(live, **options)  # type: ignore[arg-type]
    await engine.start()
    found = await asyncio.gather(*(engine.generate(Request(prompt, sampling, n)) for prompt in PROMPTS))
    await engine.stop()
    return [completion for completions in found for completion in completions]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_log_probabilities_are_those_of_modules_with_rounded_keys_and_values(architecture: str) -> None:
    """Prompts of many lengths in one batch, and samples that share theirs: their last block is copied."""
    live = policy(architecture)
    completions = await answers(live, Sampling(max_tokens=20, ignore_end=True), n=3, cache_in_fp8=True)
    rounding = mean_difference(live, completions)
    round_keys_and_values(live.model.get_base_model(), with_own_scales)
    assert mean_difference(live, completions) < rounding / 20, "a last digit decides about a rounding now and then"
    assert 1e-3 < rounding < 0.05


def mean_difference(live: LiveWeights, completions: list[Completion]) -> float:
    apart = [
        abs(ours - theirs)
        for index, completion in enumerate(completions)
        for ours, theirs in zip(
            completion.logprobs, reference_logprobs(live, PROMPTS[index // 3], completion, 1.0), strict=True
        )
    ]
    return sum(apart) / len(apart)


async def test_a_preempted_sequence_continues_with_the_same_numbers() -> None:
    """Its past is read again as a prompt, and attends to the rounded keys as decoding did."""
    live = policy("qwen3")
    sampling = Sampling(max_tokens=30, temperature=0.0, ignore_end=True)
    roomy, narrow = [await answers(live, sampling, cache_in_fp8=True, blocks=blocks) for blocks in (64, 7)]
    assert [each.tokens for each in narrow] == [each.tokens for each in roomy]
    for ours, theirs in zip(narrow, roomy, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-3), "a last digit decides about a rounding"


def test_each_token_has_a_scale_in_each_head() -> None:
    weights = PolicyWeights(policy("qwen3").model, CONTEXT)
    keys = Cache(weights, CacheShape(3, 16, in_fp8=True)).layer(1).keys
    sizes = torch.tensor([[1e-4, 1.0], [30.0, 5000.0]])
    tokens = torch.randn(2, weights.kv_heads, weights.head_dim) * sizes[:, :, None]
    keys.write(torch.tensor([16 + 3, 32]), tokens)
    read = keys.gathered(torch.tensor([[1, 2]]), 17, torch.float32)[0, :, [3, 16]].transpose(0, 1)
    for mine, exact in zip(read.flatten(0, 1), tokens.flatten(0, 1), strict=True):
        assert 1e-3 < float((mine - exact).norm() / exact.norm()) < 0.04


def test_memory_holds_about_twice_the_tokens(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "qwen3", {"head_dim": 128})
    monkeypatch.setattr(choice, "_CPU_MEMORY", 200 * 2**20)
    blocks = {}
    for dtype in ("auto", "fp8"):
        live = policy("qwen3")
        live.model.to(torch.bfloat16)
        engine = choose_engine(with_cache(model, "fast", dtype, rows=10_000), live, frozenset(), tmp_path)
        assert isinstance(engine, FastEngine)
        blocks[dtype] = engine._scheduler.free_blocks
    assert 1.9 < blocks["fp8"] / blocks["auto"] < 2.0


def test_what_cannot_cache_in_8_bits_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(engine: str) -> str:
        with pytest.raises(TrainerError) as caught:
            choose_engine(with_cache(model, engine), live, frozenset(), tmp_path)
        assert caught.value.reason == "InvalidConfig"
        return caught.value.message

    live = policy("qwen3")
    assert refusal("auto") == "inference.kvCacheDtype fp8 needs inference.engine fast where there is no GPU"
    monkeypatch.setattr(LiveWeights, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    assert refusal("fast") == "inference.kvCacheDtype fp8 needs a GPU of Hopper or newer; this is a NVIDIA A100"
    live.model.get_base_model().config.model_type = "gemma3"
    assert "needs the fast engine, which cannot serve" in refusal("auto")
