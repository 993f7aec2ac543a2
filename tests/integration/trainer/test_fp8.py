"""A base in 8 bits: the engine and the modules compute the same policy, and adapters learn over it. The arithmetic is
the CPU's; the wiring is that of a GPU."""

import asyncio
from pathlib import Path

import pytest
import torch
from msgspec import structs

from clotho_contract.settings import Inference
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import Request, Sampling
from clotho_trainer.inference.paged.engine import FastEngine
from clotho_trainer.model import fp8, load
from clotho_trainer.model.architecture import base_model
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer import fast_policies
from integration.trainer.fast_policies import ARCHITECTURES, nudge, reference_logprobs
from integration.trainer.tiny import backend, config, groups, with_model

PROMPTS = [(5, 6, 7, 8, 9, 10, 11, 12, 13), (14,), tuple(range(5, 40))]


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).detach().norm() / right.detach().norm())


def test_a_rounded_layer_is_near_the_exact_one_and_so_is_its_gradient() -> None:
    torch.manual_seed(0)
    exact = torch.nn.Linear(128, 96).requires_grad_(False)
    layer = fp8.Fp8Linear(exact, exact.weight.abs().amax() / fp8.LARGEST)
    inputs = [torch.randn(3, 7, 128, requires_grad=True) for _ in range(2)]
    inputs[1].data = inputs[0].data * torch.tensor([1.0, 1e-3, 1e3])[:, None, None]  # rows have scales of their own
    direction = torch.randn(3, 7, 96)
    for x in inputs:
        y = layer(x)
        for mine, theirs in zip(y - exact.bias, exact(x) - exact.bias, strict=True):
            assert 1e-3 < relative(mine, theirs) < 0.05
        (gradient,) = torch.autograd.grad((y * direction).sum(), x)
        (expected,) = torch.autograd.grad((exact(x) * direction).sum(), x)
        assert 1e-3 < relative(gradient, expected) < 0.05


def test_compiled_layers_have_the_same_gradients() -> None:
    live = fast_policies.policy("qwen3")
    fp8.convert(base_model(live.model))
    live.model.train()
    trained = [parameter for parameter in live.model.parameters() if parameter.requires_grad]

    def gradients() -> torch.Tensor:
        logits = live.model(input_ids=torch.tensor([PROMPTS[2]])).logits
        found = torch.autograd.grad(logits.log_softmax(-1)[0, :, 7].sum(), trained)
        return torch.cat([gradient.flatten() for gradient in found])

    expected = gradients()
    for layer in live.model.get_base_model().model.layers:
        layer.compile(backend="aot_eager")
    assert relative(gradients(), expected) < 0.1
    torch._dynamo.reset()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_the_engine_computes_what_the_modules_compute(architecture: str) -> None:
    """But for the adapters' inputs, which are rounded in the engine alone: with an adapter, the difference is that of
    other roundings further on, and small beside what rounding itself changes."""
    live = fast_policies.policy(architecture)
    exact = fast_policies.policy(architecture)
    fp8.convert(base_model(live.model))
    for policy_now in (live, exact):
        scale_adapters(policy_now, 0.0)
    engine = fast_policies.engine(live)
    assert engine.weights.rounds
    await engine.start()
    apart, rounding = await differences(engine, live, exact)
    assert apart < rounding / 20, "a last digit decides about a rounding now and then"
    await asyncio.to_thread(nudge, live)
    scale_adapters(live, 0.1)
    exact.model.load_state_dict(live.model.state_dict(), strict=False)
    apart, rounding = await differences(engine, live, exact)
    assert 1e-4 < apart < rounding / 2
    await engine.stop()


async def differences(engine: FastEngine, live: LiveWeights, exact: LiveWeights) -> tuple[float, float]:
    """Of the engine to the modules, and of the modules to those of an exact base; means over tokens."""
    apart, rounding = [], []
    for prompt in PROMPTS:
        for completion in await engine.generate(Request(prompt, Sampling(max_tokens=12, ignore_end=True), n=4)):
            modules, precise = (
                torch.tensor(reference_logprobs(policy_now, prompt, completion, 1.0)) for policy_now in (live, exact)
            )
            apart.append((torch.tensor(completion.logprobs) - modules).abs().mean())
            rounding.append((modules - precise).abs().mean())
    return float(torch.stack(apart).mean()), float(torch.stack(rounding).mean())


def scale_adapters(live: LiveWeights, factor: float) -> None:
    with torch.no_grad():
        for name, parameter in live.model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(factor)


def test_an_adapter_is_as_exact_as_in_16_bits() -> None:
    live = fast_policies.policy("llama")
    fp8.convert(base_model(live.model))
    engine = fast_policies.engine(live)
    linear, projection = engine.weights.layers[0].down, live.model.get_base_model().model.layers[0].mlp.down_proj
    with torch.no_grad():
        linear.refresh([linear])
    down, up = projection.lora_A["default"].weight, projection.lora_B["default"].weight
    rank = linear.rank
    with torch.no_grad():
        below = linear._store[linear.width :].float() * linear._scale
        rebuilt = linear._up[:, :rank] @ below[:rank] + linear._up[:, rank:] @ below[rank:]
        assert relative(rebuilt, projection.scaling["default"] * up @ down) < 4e-3


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "require_quantization", lambda _: None)


def in_fp8(model: Path, work: Path, engine: str = "fast") -> LocalBackend:
    settings = with_model(config(model), quantization="fp8")
    return backend(structs.replace(settings, inference=Inference(engine=engine)), work)  # type: ignore[arg-type]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("engine", ["fast", "transformers"])
async def test_adapters_train_over_it_and_are_restored(engine: str, model: Path, tmp_path: Path) -> None:
    trained = in_fp8(model, tmp_path, engine)
    assert isinstance(trained.engine, FastEngine) == (engine == "fast")
    rounded = [m for m in trained.live.model.modules() if isinstance(m, fp8.Fp8Linear)]
    assert len(rounded) == 14, "seven in each of two layers; embedding and head stay as they are"
    before = rounded[0].weight.float()
    figures = [trained.step(prepare(groups(seed), trained.rules, trained.version), 1e-2) for seed in range(2)]
    assert all(step["gradient_norm"] > 0 for step in figures)
    assert torch.equal(before, rounded[0].weight.float())
    trained.save(tmp_path)
    resumed = in_fp8(model, tmp_path, engine)
    resumed.restore(tmp_path, 2)
    request = Request((5, 6, 7), Sampling(max_tokens=8, temperature=0.0, ignore_end=True))
    answers = []
    for served in (trained, resumed):
        await served.engine.start()
        answers += await served.engine.generate(request)
        await served.engine.stop()
    assert answers[0] == answers[1]


def test_an_unsuitable_model_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainerError, match=r"model.quantization fp8 needs a CUDA GPU, and this pod sees none"):
        in_fp8(model, tmp_path)
    odd = fast_policies.policy("qwen3", adapts=None).model
    odd.model.layers[1].mlp.up_proj = torch.nn.Linear(64, 90, bias=False)
    odd.requires_grad_(False)
    with pytest.raises(TrainerError, match="multiples of 16; up_proj is 90 x 64"):
        fp8._convert_layer(odd.model.layers[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    with pytest.raises(TrainerError, match="fp8 needs a GPU of Hopper or newer; this is a NVIDIA A100"):
        load.require_quantization("fp8")
