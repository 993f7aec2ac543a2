"""Model families that the fast engine does not support: they are served and trained by their own modules, exactly."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from clotho_contract.settings import Lora
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.transformers.ragged import RaggedBatch
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer.families import ARCHITECTURES, sampled, saved, scored
from integration.trainer.fast_policies import reference_logprobs
from integration.trainer.tiny import backend, config, groups


@pytest.fixture(params=ARCHITECTURES)
async def policy(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalBackend]:
    """After two steps, so that the adapter is not zero."""
    loaded = backend(config(saved(request.param, tmp_path / "model")), tmp_path)
    for seed in range(2):
        loaded.step(prepare(groups(seed), loaded.rules, loaded.version), 5e-2)
    await loaded.engine.start()
    yield loaded
    await loaded.engine.stop()


async def test_samples_have_the_log_probabilities_of_the_whole_row_and_train_as_on_policy(policy: LocalBackend) -> None:
    answers = await sampled(policy)
    for prompt, completions in answers:
        for completion in completions:
            expected = reference_logprobs(policy.live, prompt, completion, 1.0)
            assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    figures = policy.step(prepare(scored(answers), policy.rules, policy.version), 1e-2)
    assert figures["sampling/logprob_difference"] < 1e-5, "rows that training has padded have the same probabilities"
    assert figures["gradient_norm"] > 0


async def test_a_checkpoint_gives_back_the_same_policy(policy: LocalBackend, tmp_path: Path) -> None:
    (prompt, (completion, *_)), *_ = await sampled(policy)
    folder = tmp_path / "checkpoint"
    policy.save(folder)
    again = backend(config(tmp_path / "model"), tmp_path)
    again.restore(folder, policy.version)
    found = reference_logprobs(again.live, prompt, completion, 1.0)
    assert found == pytest.approx(completion.logprobs, abs=1e-4)


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
    with pytest.raises(
        TrainerError, match=r"targetModules q_proj2: .*not found.* layers of this model are down_proj, gate"
    ) as caught:
        backend(settings, tmp_path)
    assert caught.value.reason == "InvalidConfig"
