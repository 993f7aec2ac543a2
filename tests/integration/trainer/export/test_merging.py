"""What training changed is in what is exported: checkpoints of the trainer itself, adapters and full weights."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from clotho_contract.settings import Export
from clotho_trainer.export.run import export
from clotho_trainer.failures import TrainerError
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.checkpoints import Checkpoints
from integration.trainer.tiny import backend, config, groups

PROMPT = [[5, 9, 30, 12, 7]]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor(PROMPT)).logits[0].float()


def load(folder: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()


def train(model: Path, work: Path, rank: int) -> tuple[Path, torch.Tensor]:
    """A few steps, a checkpoint, and what the policy says at that moment."""
    chosen = config(model, rank=rank)
    trainer = backend(chosen, work)
    for seed in range(3):
        trainer.step(prepare(groups(seed), trainer.rules, trainer.version), 1e-2)

    def fill(folder: Path) -> None:
        trainer.save(folder)
        (folder / "training_config.json").write_text(json.dumps({"config": msgspec.to_builtins(chosen)}))

    saved = Checkpoints(work / "checkpoints", keep=1, run=chosen.run.id).write(3, fill)
    return Path(saved.path), logits(trainer._live.model.eval())


@pytest.mark.parametrize("rank", [8, 0], ids=["adapter", "full weights"])
def test_a_trained_policy_is_exported_as_it_is(rank: int, model: Path, tmp_path: Path) -> None:
    checkpoint, expected = train(model, tmp_path, rank)
    outcome = export(checkpoint, tmp_path / "out", Export(formats=("safetensors", "gguf"), quantization="f32"))
    assert not torch.allclose(logits(load(model)), expected, atol=0.01)  # training did change something
    merged = load(tmp_path / "out" / "safetensors")
    assert torch.allclose(logits(merged), expected, atol=1e-4)
    again = load(tmp_path / "out", gguf_file="model-f32.gguf", config=merged.config)
    assert torch.allclose(logits(again), expected, atol=1e-4)
    assert {"model-f32.gguf", "Modelfile", "safetensors/model.safetensors"} <= {file.path for file in outcome.files}
    assert outcome.bytes == sum((tmp_path / "out" / file.path).stat().st_size for file in outcome.files)


@pytest.mark.parametrize("rslora", [False, True])
def test_merging_is_what_peft_computes(rslora: bool, model: Path, tmp_path: Path) -> None:
    settings = LoraConfig(r=4, lora_alpha=10, use_rslora=rslora, target_modules=["q_proj", "down_proj"])
    wrapped = get_peft_model(load(model), settings)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    wrapped.save_pretrained(tmp_path / "adapter")
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "adapter")
    export(tmp_path / "adapter", tmp_path / "out", Export(formats=("safetensors",)), base=str(model))
    assert torch.allclose(logits(load(tmp_path / "out" / "safetensors")), logits(wrapped.eval()), atol=1e-4)


def test_a_damaged_checkpoint_is_not_exported(model: Path, tmp_path: Path) -> None:
    checkpoint, _ = train(model, tmp_path, rank=8)
    weights = checkpoint / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"12345678")
    with pytest.raises(TrainerError, match=r"is damaged: adapter_model.safetensors was altered"):
        export(checkpoint, tmp_path / "out", Export())
    assert not (tmp_path / "out").exists()


def test_an_adapter_that_cannot_be_merged_is_refused(model: Path, tmp_path: Path) -> None:
    wrapped = get_peft_model(load(model), LoraConfig(r=4, use_dora=True, target_modules=["q_proj"]))
    wrapped.save_pretrained(tmp_path / "adapter")
    with pytest.raises(TrainerError, match="cannot be merged: it uses DoRA"):
        export(tmp_path / "adapter", tmp_path / "out", Export(), base=str(model))


def test_weights_that_are_not_numbers_are_refused(model: Path, tmp_path: Path) -> None:
    broken = load(model)
    with torch.no_grad():
        broken.lm_head.weight[0, 0] = float("nan")
    broken.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "broken")
    with pytest.raises(TrainerError, match=r"lm_head.weight holds values that are not finite"):
        export(tmp_path / "broken", tmp_path / "out", Export())
    assert [path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")] == []


def test_a_base_that_is_gone_is_named(model: Path, tmp_path: Path) -> None:
    checkpoint, _ = train(model, tmp_path, rank=8)
    with pytest.raises(TrainerError, match="cannot read the model from the folder /nowhere"):
        export(checkpoint, tmp_path / "out", Export(), base="/nowhere")
