"""Activations that do not fit are recomputed, by no more layers than necessary, and the gradient stays the same."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from clotho_contract.settings import Loss
from clotho_trainer.model.architecture import recomputable_layers
from clotho_trainer.model.tiny import make_tokenizer
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local import passes
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer.tiny import backend, config, groups


def take_step(policy: LocalBackend) -> dict[str, float]:
    return policy.step(prepare(groups(0), policy.rules, policy.version), 1e-2)


def forward_passes(policy: LocalBackend) -> list[int]:
    """Of each layer, counted from now on."""
    layers = recomputable_layers(policy.live.model)
    counts = [0] * len(layers)

    def count(index: int) -> Any:
        def hook(*_: Any) -> None:
            counts[index] += 1

        return hook

    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(count(index))
    return counts


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("recomputed", [0, 1, 2])
def test_only_the_first_layers_recompute(
    recomputed: int, beta: float, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(model, loss=Loss(beta=beta), gradient_checkpointing=None)
    expected = take_step(backend(settings, tmp_path))
    policy = backend(settings, tmp_path)
    monkeypatch.setattr(policy._activations, "recomputed_layers", lambda _tokens: recomputed)
    counts = forward_passes(policy)
    found = take_step(policy)
    once = 2 if beta else 1  # the reference keeps nothing
    assert counts == [once + 1] * recomputed + [once] * (2 - recomputed)
    assert found["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-4)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_layers_of_any_name_recompute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 has them as `transformer.h`."""
    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 512}
    settings = AutoConfig.for_model("gpt2", pad_token_id=0, bos_token_id=1, eos_token_id=1, **sizes)
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    policy = backend(config(tmp_path / "model", gradient_checkpointing=None), tmp_path)
    monkeypatch.setattr(policy._activations, "recomputed_layers", lambda _tokens: 2)
    counts = forward_passes(policy)
    assert take_step(policy)["gradient_norm"] > 0
    assert counts == [2, 2, 1]
    assert passes.measured(policy.live.model, nullcontext, 2**40).layers == 3


def test_each_pass_recomputes_what_its_own_length_asks_for(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = backend(config(model, micro_batch_size=4, gradient_checkpointing=None), tmp_path)
    asked: list[int] = []

    def recomputed_layers(tokens: int) -> int:
        asked.append(tokens)
        return 2 if tokens == max(asked) else 0

    monkeypatch.setattr(policy._activations, "recomputed_layers", recomputed_layers)
    batch = prepare(groups(0), policy.rules, policy.version)
    policy.step(batch, 1e-2)
    prompts = {row.prompt.tobytes(): len(row.prompt) for row in batch.rows}
    assert len(asked) == 2
    assert sum(asked) == sum(prompts.values()) + sum(len(row.completion) for row in batch.rows), "no padding counts"


@pytest.mark.parametrize("gradient_checkpointing", [None, False, True])
def test_a_pass_that_is_out_of_memory_is_repeated_with_less(
    gradient_checkpointing: bool | None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First with recomputed activations, where the config leaves that to the trainer, then with fewer sequences."""
    settings = config(model, micro_batch_size=8, gradient_checkpointing=gradient_checkpointing)
    expected = take_step(backend(settings, tmp_path))
    policy = backend(settings, tmp_path)
    tried: list[tuple[int, int]] = []
    loss = policy._trainer.loss

    def within_memory(work: Any, recomputed: int) -> torch.Tensor:
        rows = len(work.inputs["completion_ids"])
        tried.append((rows, recomputed))
        if rows > 4:
            raise torch.OutOfMemoryError
        return loss(work, recomputed)

    monkeypatch.setattr(policy._trainer, "loss", within_memory)
    found = take_step(policy)
    first, last = {None: (0, 2), False: (0, 0), True: (2, 2)}[gradient_checkpointing]
    more = [(8, 2)] if gradient_checkpointing is None else []
    assert tried == [(8, first), *more, (4, last), (4, last)]
    assert found["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-4)
