"""A resumed run goes on as if it had never stopped."""

from pathlib import Path

import pytest
import torch

from clotho_contract.settings import Lora
from clotho_trainer.failures import TrainerError
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.checkpoints import Checkpoints
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer.tiny import backend, config, groups


def train(policy: LocalBackend, steps: range) -> list[float]:
    return [policy.step(prepare(groups(seed), policy.rules, policy.version), 1e-2)["loss"] for seed in steps]


@pytest.mark.parametrize("lora", [Lora(rank=8, alpha=16.0, dropout=0.1), Lora(rank=0)])
def test_the_loss_curve_of_a_resumed_run_is_that_of_an_uninterrupted_one(
    lora: Lora, model: Path, tmp_path: Path
) -> None:
    settings = config(model, lora=lora)
    uninterrupted = train(backend(settings, tmp_path), range(6))

    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1, run="a")
    first = backend(settings, tmp_path)
    begun = train(first, range(3))
    saved = checkpoints.write(first.version, first.save)
    torch.manual_seed(12345)  # another process has another state

    second = backend(settings, tmp_path)
    second.restore(Path(saved.path), saved.step)
    assert second.version == 3
    assert [*begun, *train(second, range(3, 6))] == pytest.approx(uninterrupted, rel=1e-5, abs=1e-8)


def test_a_checkpoint_holds_what_others_can_load(model: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = backend(config(model), tmp_path)
    train(policy, range(1))
    folder = Path(Checkpoints(tmp_path / "c", keep=1, run="a").write(1, policy.save).path)
    assert {"adapter_model.safetensors", "tokenizer.json", "optimizer.pt", "state.pt"} <= {
        p.name for p in folder.iterdir()
    }
    base = AutoModelForCausalLM.from_pretrained(model)
    assert PeftModel.from_pretrained(base, folder).peft_config["default"].r == 8
    assert len(AutoTokenizer.from_pretrained(folder)) == len(policy.tokenizer)


@pytest.mark.parametrize(("saved", "resumed"), [(8, 0), (0, 8), (8, 4)])
def test_a_checkpoint_of_another_shape_is_refused_with_a_sentence(
    saved: int, resumed: int, model: Path, tmp_path: Path
) -> None:
    policy = backend(config(model, rank=saved), tmp_path)
    folder = Path(Checkpoints(tmp_path / "c", keep=1, run="a").write(0, policy.save).path)
    with pytest.raises(TrainerError, match="the checkpoint step-00000000 holds") as caught:
        backend(config(model, rank=resumed), tmp_path).restore(folder, 0)
    assert caught.value.reason == "InvalidConfig"
