"""Base and adapters as one product: what the layers' own modules compute, and the same gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from clotho_contract.settings import Inference
from clotho_trainer.inference.paged.weights import PolicyWeights
from clotho_trainer.model import fp8
from clotho_trainer.model.architecture import base_model
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local import gating, joint, packing, varlen_attention
from clotho_trainer.training.local.logprob_head import completion_logprobs
from integration.trainer.fast_policies import ARCHITECTURES, CONTEXT, nudge, policy
from integration.trainer.test_packing import CPU, ROWS, WIDTH, gradients, padded, weighed
from integration.trainer.tiny import backend, config, groups


def packed_policy(architecture: str, *, in_fp8: bool = False, **options: Any) -> LiveWeights:
    live = policy(architecture, **options)
    if in_fp8:
        fp8.convert(base_model(live.model))
    live.model.train()
    packing.prepare(live.model)
    return live


def results(live: LiveWeights, rows: int = len(ROWS)) -> tuple[torch.Tensor, list[torch.Tensor]]:
    ids, mask = padded()
    logprobs, _ = completion_logprobs(live.model, packing.packed(ids[:rows], mask[:rows], WIDTH, CPU), 1.0)
    return logprobs, gradients(live, weighed(logprobs))


def expect_the_same(
    found: tuple[torch.Tensor, list[torch.Tensor]], expected: tuple[torch.Tensor, list[torch.Tensor]]
) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("recomputes", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_joined_layers_equal_their_modules(architecture: str, recomputes: bool) -> None:
    live = packed_policy(architecture)
    weights = PolicyWeights(live.model, CONTEXT)
    before = results(live)
    nudge(live)
    expected = results(live)
    refresh = joint.join(live.model, weights)
    assert refresh
    if recomputes:
        live.model.enable_input_require_grads()
        live.model.gradient_checkpointing_enable({"use_reentrant": False})
    refresh()
    expect_the_same(results(live), expected)
    assert not torch.allclose(expected[0], before[0], atol=1e-4), "another adapter, another policy"


def relative(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    left, right = (torch.cat([gradient.flatten() for gradient in side]) for side in (found, expected))
    return float((left - right).norm() / right.norm())


@pytest.mark.parametrize("rank", [4, 16], ids=["ranks together", "ranks of each module"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_joined_layers_in_8_bits_are_as_exact_as_their_modules(architecture: str, rank: int) -> None:
    """Forward they round the same rows; backward rows of several modules are rounded together."""
    exact, live = packed_policy(architecture, rank=rank), packed_policy(architecture, rank=rank, in_fp8=True)
    weights = PolicyWeights(live.model, CONTEXT)
    for each in (exact, live):
        torch.manual_seed(1)
        nudge(each)
    expected, modules = results(exact), results(live)
    refresh = joint.join(live.model, weights)
    assert refresh
    without_adapters = results(live)[0]
    refresh()
    found = results(live)
    rounding = (modules[0] - expected[0]).abs().mean()
    assert (found[0] - modules[0]).abs().mean() < rounding / 4, "a last digit decides about a rounding now and then"
    assert (without_adapters - modules[0]).abs().mean() > 2 * rounding
    assert 1e-3 < relative(found[1], expected[1]) < 1.1 * relative(modules[1], expected[1]) < 0.3
    assert 1e-5 < relative(found[1], modules[1]) < 1.1 * relative(modules[1], expected[1])


@pytest.mark.parametrize("in_fp8", [False, True], ids=["16 bits", "8 bits"])
def test_the_base_by_itself_and_padded_rows_still_pass_through_the_modules(*, in_fp8: bool) -> None:
    live = packed_policy("qwen3", in_fp8=in_fp8)
    ids, mask = padded()

    def plain() -> list[torch.Tensor]:
        with torch.no_grad():
            logits = live.model(input_ids=ids, attention_mask=mask).logits[mask.bool()]
            with live.model.disable_adapter():
                return [logits, completion_logprobs(live.model, packing.packed(ids, mask, WIDTH, CPU), 1.0)[0]]

    expected = plain()
    assert joint.join(live.model, PolicyWeights(live.model, CONTEXT))  # without a refresh, adapters would be zero
    for mine, theirs in zip(plain(), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("in_fp8", [False, True], ids=["16 bits", "8 bits"])
def test_compiled_layers_are_the_same_and_serve_every_length(monkeypatch: pytest.MonkeyPatch, *, in_fp8: bool) -> None:
    plain: Any = torch.compiler.disable(varlen_attention._plain)  # type: ignore[no-untyped-call]
    # The plain one goes part by part; a GPU's attention is one operation.
    monkeypatch.setattr(varlen_attention, "_plain", plain)
    live = packed_policy("qwen3", in_fp8=in_fp8)
    weights = PolicyWeights(live.model, CONTEXT)
    counts = (5, 3, 4, 2)
    expected = [results(live, rows) for rows in counts]
    refresh = joint.join(live.model, weights)
    assert refresh
    refresh()
    if in_fp8:  # modules round gradients one by one
        expected = [results(live, rows) for rows in counts]
    for layer in base_model(live.model).model.layers:
        layer.compile(backend="aot_eager")
    try:
        found = [results(live, rows) for rows in counts[:2]]
        torch._dynamo.config.error_on_recompile = True
        found += [results(live, rows) for rows in counts[2:]]
    finally:
        torch._dynamo.config.error_on_recompile = False
        torch._dynamo.reset()
    for mine, theirs in zip(found, expected, strict=True):
        expect_the_same(mine, theirs)


def test_layers_without_an_adapter_are_left_alone() -> None:
    some = packed_policy("qwen3", adapts=["q_proj", "v_proj"])
    assert joint.join(some.model, PolicyWeights(some.model, CONTEXT)) is None


def test_the_gradient_of_gating_is_that_of_autograd() -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(5, 24, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(5, 12, dtype=torch.float64)
    gates, up = gate_up.chunk(2, -1)
    expected = torch.nn.functional.silu(gates) * up
    torch.testing.assert_close(gating.gate(gate_up.detach(), 4)[:, :12], expected.detach())
    (by_autograd,) = torch.autograd.grad(expected, gate_up, slope)
    torch.testing.assert_close(gating.gradient(slope, gate_up.detach(), 4)[:, :24], by_autograd)


def test_gating_adds_what_adapters_add() -> None:
    torch.manual_seed(0)
    gate_up, below, up, slope, back, down = (
        torch.randn(*shape, dtype=torch.float64) for shape in ((5, 24), (5, 8), (24, 8), (5, 12), (5, 3), (3, 12))
    )
    adapters = gating.Adapters(below, up, 4, 4)
    whole = gate_up + below @ up.t()
    torch.testing.assert_close(gating.gate_adapted(gate_up, adapters), gating.gate(whole, 0))
    torch.testing.assert_close(
        gating.gradient_adapted(slope, back, down, gate_up, adapters), gating.gradient(slope + back @ down, whole, 0)
    )


def test_a_step_over_joined_layers_is_that_of_the_modules(model: Path, tmp_path: Path) -> None:
    settings = config(model)
    steps = []
    for engine in ("fast", "transformers"):
        trained = backend(structs.replace(settings, inference=Inference(engine=engine)), tmp_path)
        assert (trained._refresh_joint is not None) == (engine == "fast")
        steps.append([trained.step(prepare(groups(seed), trained.rules, trained.version), 1e-2) for seed in range(3)])
    for mine, theirs in zip(*steps, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-5)
        assert mine["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-3)
