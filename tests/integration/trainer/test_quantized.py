"""QLoRA: a base in 4 bits, adapters in single precision. The kernels are the CPU's; the wiring is that of a GPU."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import Request, Sampling
from clotho_trainer.inference.paged.engine import FastEngine
from clotho_trainer.inference.transformers.engine import TransformersEngine
from clotho_trainer.model import load
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.checkpoints import Checkpoints
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer.fast_policies import reference_logprobs
from integration.trainer.tiny import backend, config, groups, with_model


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "require_quantization", lambda _: None)
    # On newer CPUs bitsandbytes repacks the weights for inference, and then trains through a product without gradients.
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)


def quantized(model: Path, work: Path, engine: str = "auto", **training: Any) -> LocalBackend:
    settings = with_model(config(model, **training), quantization="nf4")
    return backend(structs.replace(settings, inference=structs.replace(settings.inference, engine=engine)), work)


@pytest.mark.usefixtures("on_cpu")
async def test_adapters_train_over_a_base_of_four_bits(model: Path, tmp_path: Path) -> None:
    trained = quantized(model, tmp_path, gradient_checkpointing=True)
    linear = [
        m.base_layer for m in trained.live.model.modules() if type(m).__module__.startswith("peft.tuners.lora.bnb")
    ]
    assert len(linear) == 14, "seven in each of two layers; embedding and head stay as they are"
    assert {m.weight.quant_type for m in linear} == {"nf4"}
    assert all(m.weight.quant_state.nested for m in linear), "the scales are quantised, too"
    adapters = {p.dtype for p in trained.live.model.parameters() if p.requires_grad}
    assert adapters == {torch.float32}
    before = linear[0].weight.data.clone()
    figures = [trained.step(prepare(groups(seed), trained.rules, trained.version), 1e-2) for seed in range(2)]
    assert all(step["gradient_norm"] > 0 for step in figures)
    assert torch.equal(before, linear[0].weight.data)

    await trained.engine.start()
    completions = await trained.engine.generate(Request((5, 6, 7), Sampling(max_tokens=4, ignore_end=True), n=2))
    await trained.engine.stop()
    assert [len(completion.tokens) for completion in completions] == [4, 4]

    saved = Checkpoints(tmp_path / "c", keep=1, run="a").write(2, trained.save)
    resumed = quantized(model, tmp_path)
    resumed.restore(Path(saved.path), 2)
    batch = prepare(groups(7), trained.rules, 2)
    assert resumed.step(batch, 1e-2)["loss"] == pytest.approx(trained.step(batch, 1e-2)["loss"], rel=1e-5)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("name", "kind"), [("fast", FastEngine), ("transformers", TransformersEngine)])
async def test_engines_sample_from_what_the_modules_compute(name: str, kind: type, model: Path, tmp_path: Path) -> None:
    trained = quantized(model, tmp_path, engine=name)
    live, engine = trained.live, trained.engine
    assert isinstance(engine, kind)
    held = sum(p.numel() * p.element_size() for p in live.model.parameters())
    await engine.start()
    for _ in range(2):
        for prompt in ((5, 6, 7), tuple(range(5, 30))):
            for completion in await engine.generate(Request(prompt, Sampling(max_tokens=12, ignore_end=True), n=3)):
                expected = await asyncio.to_thread(reference_logprobs, live, prompt, completion, 1.0)
                assert completion.logprobs == pytest.approx(expected, abs=1e-5)
        step = await asyncio.to_thread(trained.step, prepare(groups(1), trained.rules, trained.version), 1e-2)
        assert step["gradient_norm"] > 0
    await engine.stop()
    assert sum(p.numel() * p.element_size() for p in live.model.parameters()) == held, "the base stays packed"


def test_without_a_gpu_it_is_refused_with_a_sentence(model: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(TrainerError, match=r"model.quantization nf4 needs a CUDA GPU, and this pod sees none"):
        quantized(model, tmp_path)
