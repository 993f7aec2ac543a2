"""Model families that the fast engine does not support: they are served and trained by their own modules, exactly."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from clotho_contract.settings import Lora
from clotho_contract.trajectory import NO_LOGPROB, ScoredGroup
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import Completion, Request, Sampling
from clotho_trainer.inference.transformers.ragged import RaggedBatch
from clotho_trainer.model.tiny import make_tokenizer
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer.tiny import backend, config, groups

_WINDOW = 8
_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
_GEMMA = {
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": _WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
}
_EYES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": _WINDOW, "head_dim": 8},
    "gemma3_text": _GEMMA,
    "gemma3": {"vision_config": _EYES, "mm_tokens_per_image": 4},  # around gemma3_text
    "gpt_oss": {
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": _WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "qwen3_moe": {"head_dim": 8, **_EXPERTS},
    "qwen3_next": {"head_dim": 8, "shared_expert_intermediate_size": 16, **_EXPERTS, **_LINEAR},
    "qwen3_5_text": {"head_dim": 8, **_LINEAR},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
}


def saved(architecture: str, folder: Path) -> Path:
    """A random model of that family, as a hub would have it."""
    tokenizer, extra = make_tokenizer(), ARCHITECTURES[architecture]
    size = len(tokenizer)
    if architecture == "gemma3":
        special = {f"{name}_token_index": size - 1 - index for index, name in enumerate(("image", "boi", "eoi"))}
        settings = {"text_config": {**_SMALL, **_GEMMA, "vocab_size": size}, **extra, **special}
    else:
        settings = {**_SMALL, **extra, "vocab_size": size}
    torch.manual_seed(0)
    made: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **settings), dtype=torch.float32)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(params=ARCHITECTURES)
async def policy(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalBackend]:
    """After two steps, so that the adapter is not zero."""
    loaded = backend(config(saved(request.param, tmp_path / "model")), tmp_path)
    for seed in range(2):
        loaded.step(prepare(groups(seed), loaded.rules, loaded.version), 5e-2)
    await loaded.engine.start()
    yield loaded
    await loaded.engine.stop()


def plain_logprobs(policy: LocalBackend, prompt: tuple[int, ...], completion: Completion) -> list[float]:
    """Of one row, in one pass, without a cache."""
    ids = torch.tensor([[*prompt, *completion.tokens]])
    with policy.live.training(), torch.no_grad():
        logits = policy.live.model.eval()(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        policy.live.model.train()
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None]).squeeze(-1).tolist()


async def sampled(policy: LocalBackend) -> list[tuple[tuple[int, ...], list[Completion]]]:
    """Prompts and answers within and beyond the window, of which some join and leave while others are written."""
    prompts = [tuple(5 + place * 7 % 50 for place in range(length)) for length in (2, 19, 14, 14, 30)]

    async def ask(place: int, prompt: tuple[int, ...]) -> list[Completion]:
        for _ in range(place):
            await policy.engine.generate(Request((7,), Sampling(max_tokens=2, ignore_end=True)))
        return await policy.engine.generate(Request(prompt, Sampling(max_tokens=9 + 5 * place, ignore_end=True), n=3))

    answers = await asyncio.gather(*(ask(place, prompt) for place, prompt in enumerate(prompts)))
    return list(zip(prompts, answers, strict=True))


async def test_samples_have_the_log_probabilities_of_the_whole_row_and_train_as_on_policy(policy: LocalBackend) -> None:
    answers = await sampled(policy)
    for prompt, completions in answers:
        for completion in completions:
            assert completion.logprobs == pytest.approx(plain_logprobs(policy, prompt, completion), abs=1e-4)
    scored = [
        ScoredGroup(
            tokens=[[*prompt, *each.tokens] for each in completions],
            masks=[[-100] * len(prompt) + list(each.tokens) for each in completions],
            scores=[1.0, 0.0, 0.5],
            inference_logprobs=[[NO_LOGPROB] * len(prompt) + list(each.logprobs) for each in completions],
        )
        for prompt, completions in answers
    ]
    figures = policy.step(prepare(scored, policy.rules, policy.version), 1e-2)
    assert figures["sampling/logprob_difference"] < 1e-5, "rows that training has padded have the same probabilities"
    assert figures["gradient_norm"] > 0


async def test_a_checkpoint_gives_back_the_same_policy(policy: LocalBackend, tmp_path: Path) -> None:
    (prompt, (completion, *_)), *_ = await sampled(policy)
    folder = tmp_path / "checkpoint"
    policy.save(folder)
    again = backend(config(tmp_path / "model"), tmp_path)
    again.restore(folder, policy.version)
    assert plain_logprobs(again, prompt, completion) == pytest.approx(completion.logprobs, abs=1e-4)


def test_only_text_is_adapted(tmp_path: Path) -> None:
    loaded = backend(config(saved("gemma3", tmp_path / "model")), tmp_path)
    trained = [name for name, each in loaded.live.model.named_parameters() if each.requires_grad]
    assert trained
    assert all(".language_model." in name for name in trained)


def test_the_log_names_the_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loaded = backend(config(saved("qwen3_moe", tmp_path / "model")), tmp_path)
    assert loaded.engine.name == "transformers"
    assert f"the transformers engine serves {tmp_path / 'model'}" in caplog.text


def test_a_cache_that_cannot_be_ragged_is_refused_before_anything_is_served() -> None:
    """DeepSeek 3.2 selects keys by an index of its own."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("deepseek_v32"))
    with pytest.raises(TrainerError, match=r"cannot serve the architecture deepseek_v32.*set inference.engine vllm"):
        RaggedBatch(model)


def test_target_modules_that_the_model_does_not_have_are_refused_for_good(model: Path, tmp_path: Path) -> None:
    settings = config(model, lora=Lora(rank=8, target_modules="q_proj2"))
    with pytest.raises(TrainerError, match=r"training.lora.targetModules q_proj2: .*not found") as caught:
        backend(settings, tmp_path)
    assert caught.value.reason == "InvalidConfig"
