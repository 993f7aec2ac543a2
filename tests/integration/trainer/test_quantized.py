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
from clotho_trainer.model.architecture import base_model
from clotho_trainer.model.nf4 import Nf4Linear
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.checkpoints import Checkpoints
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer import fast_policies
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
    linear = [m for m in trained.live.model.modules() if isinstance(m, Nf4Linear)]
    assert len(linear) == 14, "seven in each of two layers; embedding and head stay as they are"
    assert all(2 * m.weight.nbytes == m.in_features * m.out_features for m in linear)
    assert {m.scales.dtype for m in linear} == {torch.uint8}, "the scales are quantised, too"
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


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_layer_computes_what_that_of_bitsandbytes_does(has_bias: bool) -> None:
    theirs = packed_linear(192, 96, has_bias=has_bias)
    ours = Nf4Linear(theirs)
    assert ours.weight.data_ptr() == theirs.weight.data_ptr(), "the weight is not copied"
    inputs = torch.randn(3, 7, 192, requires_grad=True)
    direction = torch.randn(3, 7, 96)
    results = [layer(inputs) for layer in (ours, theirs)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad((y * direction).sum(), inputs)[0] for y in results))


@pytest.mark.usefixtures("on_cpu")
def test_one_compiled_program_serves_every_number_of_tokens() -> None:
    layer = Nf4Linear(packed_linear(192, 96, has_bias=False))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    inputs = torch.randn(7, 192, requires_grad=True)
    torch._dynamo.mark_dynamic(inputs, 0)  # a program for 7 alone is an error
    try:
        torch.testing.assert_close(compiled(inputs), layer(inputs))
    finally:
        torch._dynamo.reset()


@pytest.mark.usefixtures("on_cpu")
def test_compiled_layers_have_the_same_gradients_and_keep_no_unpacked_weight() -> None:
    live = fast_policies.policy("qwen3")
    inner = base_model(live.model)
    shapes = set()
    for layer in inner.model.layers:
        for adapted in (module for module in layer.modules() if hasattr(module, "base_layer")):
            adapted.base_layer = Nf4Linear(packed(adapted.base_layer))
            shapes |= {(adapted.out_features, adapted.in_features), (adapted.in_features, adapted.out_features)}
    live.model.train()
    trained = [parameter for parameter in live.model.parameters() if parameter.requires_grad]
    ids = torch.tensor([list(range(5, 42))])
    kept: list[torch.Tensor] = []

    def gradients() -> torch.Tensor:
        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor)
            return tensor

        hidden = inner.model.embed_tokens(ids).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logits = live.model(inputs_embeds=hidden).logits
        found = torch.autograd.grad(logits.log_softmax(-1)[0, :, 7].sum(), trained)
        return torch.cat([gradient.flatten() for gradient in found])

    expected = gradients()
    kept.clear()
    for layer in inner.model.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    try:
        torch.testing.assert_close(gradients(), expected)
    finally:
        torch._dynamo.reset()
    packed_bytes = {module.weight.data_ptr() for module in live.model.modules() if isinstance(module, Nf4Linear)}
    assert packed_bytes <= {tensor.data_ptr() for tensor in kept}
    assert not [tensor.shape for tensor in kept if tuple(tensor.shape) in shapes]


def packed_linear(inputs: int, outputs: int, *, has_bias: bool) -> Any:
    torch.manual_seed(0)
    return packed(torch.nn.Linear(inputs, outputs, bias=has_bias))


def packed(linear: torch.nn.Linear) -> Any:
    """As Transformers loads it."""
    from bitsandbytes.nn.modules import Linear4bit

    has_bias = linear.bias is not None
    layer: Any = Linear4bit(
        linear.in_features, linear.out_features, has_bias, torch.float32, compress_statistics=True, quant_type="nf4"
    )
    layer.load_state_dict(linear.state_dict())
    return layer.to("cpu").requires_grad_(False)


def test_without_a_gpu_it_is_refused_with_a_sentence(model: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(TrainerError, match=r"model.quantization nf4 needs a CUDA GPU, and this pod sees none"):
        quantized(model, tmp_path)
