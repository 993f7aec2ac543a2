"""What only a GPU can show: fused and compiled paths against the plain ones. Skipped where there is none.

What passes here is proven for the versions that ran. Versions other than the lock's fail the first test: the trainer
image installs the lock's.
"""

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from clotho_contract.config import RunConfig, RunIdentity
from clotho_contract.settings import Model, Training
from clotho_contract.trajectory import ScoredGroup
from clotho_trainer.inference.core.engine import Request, Sampling
from clotho_trainer.inference.paged import linear, sharing, streaming
from clotho_trainer.inference.paged.cache import Cache, CacheShape
from clotho_trainer.inference.paged.kernels import TritonOperations
from clotho_trainer.inference.paged.linear import Rows
from clotho_trainer.inference.paged.reference_ops import PlainOperations
from clotho_trainer.inference.paged.sharing import SharedPrompts
from clotho_trainer.inference.paged.weights import PolicyWeights
from clotho_trainer.model import fp8, load, nf4, tiny
from clotho_trainer.model.architecture import base_model, compute_quantized
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.model.nf4 import Nf4Linear
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local import gating, joint, packing, passes, varlen_attention
from clotho_trainer.training.local.backend import load_backend
from clotho_trainer.training.local.logprob_head import LogprobHead, completion_logprobs
from integration.trainer import families, fast_policies
from integration.trainer.fast_policies import CONTEXT
from integration.trainer.tiny import config, groups, with_model
from rig import locked_versions

CUDA = torch.device("cuda")
EPSILON = 1e-6  # of norms

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left.float() - right.float()).detach().norm() / right.detach().float().norm())


def padded(rows: int, longest: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ragged rows over two prompts; prompts to the left, completions to the right."""
    chooser = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(5, 60, (length,), generator=chooser).tolist() for length in (9, 24)]
    ids, mask = torch.zeros(rows, 24 + longest, dtype=torch.long), torch.zeros(rows, 24 + longest, dtype=torch.long)
    for row in range(rows):
        prompt, length = prompts[row % 2], int(torch.randint(1, longest + 1, (1,), generator=chooser))
        ids[row, 24 - len(prompt) : 24] = torch.tensor(prompt)
        ids[row, 24 : 24 + length] = torch.randint(5, 60, (length,), generator=chooser)
        mask[row, 24 - len(prompt) : 24 + length] = 1
    return ids, mask


def on_gpu(architecture: str) -> LiveWeights:
    live = fast_policies.policy(architecture)
    live.model.to("cuda", torch.bfloat16)
    load.sharpen_adapters(live.model)
    return live


def in_four_bits(architecture: str, folder: Path) -> LiveWeights:
    whole = fast_policies.policy(architecture, adapts=None)
    whole.model.to(torch.bfloat16).save_pretrained(folder)
    model = load.load_model(Model(name=str(folder), quantization="nf4"), whole.tokenizer)
    adapted: Any = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    load.sharpen_adapters(adapted)
    compute_quantized(adapted, "nf4")
    return LiveWeights(adapted, whole.tokenizer)


def test_the_versions_are_those_of_the_lock() -> None:
    differing = locked_versions.differences(locked_versions.locked(), locked_versions.running())
    assert not differing, f"nothing of this run is proven for the trainer image: {'; '.join(differing)}"


def test_fused_attention_equals_the_plain_one() -> None:
    varlen = packing.packed(*padded(9, 40, 0), 40, CUDA).varlen
    tokens = int(varlen.cu_seqlens_q[-1])
    torch.manual_seed(0)
    rows = [
        torch.randn(tokens, heads, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for heads in (8, 2, 2)
    ]
    direction = torch.randn(tokens, 8, 128, device="cuda")
    wide = [row.detach().float().requires_grad_() for row in rows]
    found = varlen_attention._fused(rows, varlen, 128**-0.5)
    expected = varlen_attention._plain(wide, varlen, 128**-0.5)
    assert relative(found, expected) < 5e-3
    ours = torch.autograd.grad((found.float() * direction).sum(), rows)
    theirs = torch.autograd.grad((expected * direction).sum(), wide)
    for mine, other in zip(ours, theirs, strict=True):
        assert relative(mine, other) < 1e-2


def test_gating_kernels_equal_the_plain_operations() -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(33, 2 * 3000, device="cuda", dtype=torch.bfloat16)
    slope = torch.randn(33, 3000, device="cuda", dtype=torch.bfloat16)
    found, expected = gating.gate(gate_up, 64).cpu(), gating.gate(gate_up.cpu(), 64)
    assert relative(found[:, :3000], expected[:, :3000]) < 2e-3
    found, expected = gating.gradient(slope, gate_up, 8).cpu(), gating.gradient(slope.cpu(), gate_up.cpu(), 8)
    assert relative(found[:, :6000], expected[:, :6000]) < 1e-2


@pytest.mark.parametrize(("ranks", "step"), [(32, 32), (48, 48), (96, 0)])
def test_gating_kernels_add_what_adapters_add(ranks: int, step: int) -> None:
    torch.manual_seed(0)
    rows, width = 200, 3008
    gate_up, below, up, slope, back, down = (
        torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((rows, 2 * width), (rows, 96), (2 * width, 96), (rows, width), (rows, 64), (64, width))
    )
    below, back = below / 10, back / 10
    if step:  # block by block
        up[:width, ranks:], up[width:, :step], up[width:, step + ranks :] = 0, 0, 0
    adapters = gating.Adapters(below, up, ranks, step)
    exact = gating.Adapters(below.cpu().float(), up.cpu().float(), ranks, step)
    expected = gating.gate_adapted(gate_up.cpu().float(), exact)
    assert relative(gating.gate_adapted(gate_up, adapters).cpu(), expected) < 5e-3
    rest = (each.cpu().float() for each in (slope, back, down, gate_up))
    expected = gating.gradient_adapted(*rest, exact)
    assert relative(gating.gradient_adapted(slope, back, down, gate_up, adapters).cpu(), expected) < 1e-2


@pytest.mark.parametrize("sharpness", [0.2, 20.0], ids=["vague tokens", "confident tokens"])
def test_the_gradient_of_a_head_in_8_bits_is_near_the_exact_one(sharpness: float) -> None:
    torch.manual_seed(0)
    model: Any = torch.nn.Module()
    model.lm_head = torch.nn.Linear(256, 4096, bias=False, device="cuda", dtype=torch.bfloat16).requires_grad_(False)
    model.lm_head.weight.normal_()
    fp8._turn_head(model.lm_head)
    weight, targets = model.lm_head.weight, torch.randint(4096, (300,), device="cuda")
    hidden = (weight[targets].float() + torch.randn(300, 256, device="cuda")) * sharpness / 256
    found = hidden.bfloat16().requires_grad_()
    logprobs, _ = LogprobHead.apply(found, weight, fp8.turned_head(model), targets, 1.0)
    logits = (found.detach() @ weight.t()).float()
    exact = (torch.nn.functional.one_hot(targets, 4096) - logits.softmax(-1)) @ weight.float()
    (mine,) = torch.autograd.grad(logprobs.sum(), found)
    apart = (mine.float() - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-3)
    assert (logprobs.mean() > -0.1) == (sharpness > 1), "the cases differ"
    assert 1e-3 < apart.median() < 0.04
    assert apart.max() < 0.1


# In 8 bits one last bit of bfloat16 can move a value by a sixteenth: compiling rearranges such bits.
@pytest.mark.parametrize(
    ("quantization", "apart", "alike"),
    [
        ("none", 0.02, 0.999),
        ("joint", 0.02, 0.999),
        ("nf4", 0.02, 0.999),
        ("fp8", 0.07, 0.985),
        ("fp8 joint", 0.07, 0.985),
    ],
)
def test_compiled_layers_give_the_same_and_are_compiled_once(
    quantization: str, apart: float, alike: float, tmp_path: Path
) -> None:
    live = in_four_bits("qwen3", tmp_path) if quantization == "nf4" else on_gpu("qwen3")
    if quantization.startswith("fp8"):
        fp8.convert(base_model(live.model))
    packing.prepare(live.model)
    live.model.train()
    trained = [parameter for parameter in live.model.parameters() if parameter.requires_grad]

    def gradients(rows: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            batch = packing.packed(*padded(rows, longest, rows), longest, CUDA)
            logprobs, _ = completion_logprobs(live.model, batch, 1.0)
        weights = torch.linspace(-1, 1, logprobs.numel(), device="cuda").view_as(logprobs)
        found = torch.autograd.grad((logprobs * weights).sum(), trained)
        return logprobs.detach(), torch.cat([gradient.flatten() for gradient in found])

    shapes = [(12, 40), (11, 30), (16, 64), (20, 25)]
    expected = [gradients(*shape) for shape in shapes]
    if quantization.endswith("joint"):
        refresh = joint.join(live.model, PolicyWeights(live.model, CONTEXT))
        assert refresh
        refresh()
    passes.compile_layers(live.model)
    found = [gradients(*shapes[0])]
    torch._dynamo.config.error_on_recompile = True
    try:
        found += [gradients(*shape) for shape in shapes[1:]]
    finally:
        torch._dynamo.config.error_on_recompile = False
        torch._dynamo.reset()
    for (logprobs, gradient), (expected_logprobs, expected_gradient) in zip(found, expected, strict=True):
        chosen = expected_logprobs != 0
        assert (logprobs - expected_logprobs)[chosen].abs().mean() < apart
        assert torch.nn.functional.cosine_similarity(gradient, expected_gradient, 0) > alike


def test_steps_compile_nothing_after_the_rehearsal(tmp_path: Path) -> None:
    tiny.write(tmp_path / "model", seed=0)
    config = RunConfig(
        run=RunIdentity(name="run", namespace="default", id="run-1"),
        model=Model(name=str(tmp_path / "model"), dtype="bfloat16"),
        training=Training(steps=1, batch_size=6, max_tokens=64),
    )
    backend = load_backend(config, tmp_path)
    assert backend.compiles
    backend.rehearse()
    assert not backend.compiles
    assert all(parameter.grad is None for parameter in backend.live.model.parameters())
    prompt, answers = [5, 6, 7], [[8] * length for length in (4, 9, 13, 20, 31, 44)]
    group = ScoredGroup(
        tokens=[[*prompt, *answer] for answer in answers],
        masks=[[-100] * 3 + answer for answer in answers],
        scores=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
    )
    torch._dynamo.config.error_on_recompile = True
    try:
        backend.step(prepare([group], backend.rules, 0), 1e-3)
    finally:
        torch._dynamo.config.error_on_recompile = False
        torch._dynamo.reset()
    assert backend.version == 1


def test_more_passes_do_not_wait_for_the_gpu_more_often(model: Path, tmp_path: Path) -> None:
    counts = []
    for micro in (8, 2):
        backend = load_backend(with_model(config(model, micro_batch_size=micro), dtype="bfloat16"), tmp_path)
        batch = prepare(groups(0), backend.rules, 0)
        backend.step(batch, 1e-3)  # compiles
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                backend.step(batch, 1e-3)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        torch._dynamo.reset()
        counts.append(sum("synchroniz" in str(wait.message) for wait in waits))
    few_passes, many_passes = counts
    assert 0 < many_passes <= few_passes


def test_less_memory_makes_layers_recompute_and_changes_no_gradient(tmp_path: Path) -> None:
    shape = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "head_dim": 64}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    settings = AutoConfig.for_model("qwen3", vocab_size=64, pad_token_id=0, eos_token_id=1, **shape, **heads)
    AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16).save_pretrained(tmp_path / "model")
    tiny.make_tokenizer().save_pretrained(tmp_path / "model")
    long = config(tmp_path / "model", gradient_checkpointing=None, max_tokens=4096)
    backend = load_backend(with_model(long, dtype="bfloat16"), tmp_path)
    answers = [[5 + (row + place) % 50 for place in range(3000)] for row in range(2)]
    group = ScoredGroup(tokens=answers, masks=[[-100, *answer[1:]] for answer in answers], scores=[0.0, 1.0])
    batch, activations = prepare([group], backend.rules, 0), backend._activations
    estimated = activations.kept_bytes
    backend.step(batch, 0.0)  # compiles
    kept = backend.step(batch, 0.0)
    assert 0 < activations.kept_bytes < estimated
    activations.budget = 6000 * 5 * activations.kept_bytes
    assert 4 <= activations.recomputed_layers(6000) < 8
    recomputed = backend.step(batch, 0.0)
    torch._dynamo.reset()
    assert recomputed["gpu/memory_peak_bytes"] < kept["gpu/memory_peak_bytes"] - 3 * 6000 * activations.kept_bytes
    assert recomputed["gradient_norm"] == pytest.approx(kept["gradient_norm"], rel=1e-3)


class _Complete:
    """A layer whose product is known, and has nothing to be added: only rounding is left to compare."""

    def __init__(self, product: Rows) -> None:
        self.width = product.width
        self._product = product

    def __call__(self, _: Rows) -> Rows:
        return self._product


def test_rounding_kernels_equal_the_plain_ones() -> None:
    live = on_gpu("qwen3")
    fp8.convert(base_model(live.model))
    weights = PolicyWeights(live.model, CONTEXT)
    weights.refresh()
    ours, plain = TritonOperations(weights), PlainOperations(weights, 0)
    layer, hidden = weights.layers[0], weights.embedding.shape[1]
    torch.manual_seed(0)
    residual = torch.randn(33, hidden, device="cuda", dtype=torch.bfloat16)
    addition = Rows(torch.randn_like(residual), torch.rand(33, 1, device="cuda"))
    normed = [do.add_and_norm(residual.clone(), addition, layer.mlp_norm, rounds=True) for do in (ours, plain)]
    complete: Any = _Complete(layer.gate_up(normed[1]).with_adapters())
    gated = [do.gated(complete, normed[1], rounds=True) for do in (ours, plain)]
    for mine, other in (normed, gated, [do.rounded(residual) for do in (ours, plain)]):
        assert mine.scale is not None
        assert other.scale is not None
        assert relative(mine.scale, other.scale) < 5e-3
        assert (mine.values.float() != other.values.float()).float().mean() < 0.02, "last digits decide now and then"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(96, 64), (1000, 192), (4096, 1024)], ids=str)
def test_unpacked_weights_are_those_of_bitsandbytes(shape: tuple[int, int], dtype: torch.dtype) -> None:
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn.modules import Linear4bit

    torch.manual_seed(0)
    linear: Any = Linear4bit(shape[1], shape[0], bias=False, compute_dtype=dtype, quant_type="nf4")
    linear.weight.data = torch.randn(shape, dtype=dtype)
    linear.to("cuda")
    ours = Nf4Linear(linear)
    unpacked = torch.empty(shape, dtype=dtype, device="cuda")
    nf4.unpack(ours.packed, ours.block, unpacked)
    assert torch.equal(unpacked, dequantize_4bit(linear.weight.data, linear.weight.quant_state))


def test_products_in_8_bits_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(48, 256), torch.randn(96, 256)
    scale = weight.abs().amax() / fp8.LARGEST
    rows, scales = fp8.rounded(x)
    rounded = (weight / scale).to(fp8.FP8)
    expected = fp8.product(rows, scales, rounded, scale)
    found = fp8.product(rows.cuda(), scales.cuda(), rounded.cuda(), scale.cuda())
    assert relative(found.cpu(), expected) < 5e-3


def test_attention_over_an_fp8_cache_equals_the_plain_one() -> None:
    weights = PolicyWeights(on_gpu("mistral").model, CONTEXT)
    weights.refresh()
    torch.manual_seed(0)
    query = torch.randn(8, weights.query_heads * weights.head_dim, device="cuda", dtype=torch.bfloat16)
    positions, tables = torch.arange(8, device="cuda") * 60 + 11, torch.randperm(32, device="cuda").view(8, 4).int()
    caches = [Cache(weights, CacheShape(32, in_fp8=True)).layer(0) for _ in range(2)]
    x = Rows(torch.randn(4096, weights.embedding.shape[1], device="cuda", dtype=torch.bfloat16))
    every = torch.arange(4096, device="cuda")
    both = TritonOperations(weights), PlainOperations(weights, 0)
    for do, cache in zip(both, caches, strict=True):
        do.rotate_and_store(x, weights.layers[0], every % CONTEXT, every, cache)
    for mine, other in zip(*caches, strict=True):
        assert mine.scales is not None
        assert other.scales is not None
        assert relative(mine.scales, other.scales) < 5e-3
        assert (mine.content.float() != other.content.float()).float().mean() < 0.05, "last digits of rotated keys"
    shared = SharedPrompts(8, weights.query_heads // weights.kv_heads, weights.device)
    assert relative(*(do.attend(query, caches[0], positions, tables, None) for do in both)) < 1e-2
    for common in (0, 5):
        tables[8 - common :, 0] = tables[3, 0]
        shared.load(tables.tolist(), positions.tolist(), 128)
        assert shared.tokens.tolist() == [0] * (8 - common) + [128] * common
        assert relative(*(do.attend(query, caches[0], positions, tables, shared) for do in both)) < 1e-2
    assert relative(*(torch.stack(do.gather(caches[0], tables, 300)) for do in both)) < 1e-3


@pytest.mark.parametrize(
    ("hidden", "inner", "queries", "keys", "dim", "rank", "quantization", "cache_in_fp8"),
    [
        (4096, 12288, 32, 8, 128, 32, "none", False),
        (4096, 12288, 32, 8, 128, 32, "fp8", True),
        (2048, 6144, 16, 8, 128, 32, "fp8", False),
        (2560, 9728, 32, 8, 128, 8, "none", True),
        (2560, 9728, 32, 8, 128, 8, "fp8", True),
        (2048, 14336, 24, 8, 64, 0, "none", False),
        (2048, 14336, 24, 8, 64, 0, "fp8", False),
    ],
)
def test_kernels_that_stream_the_weights_compute_what_single_operations_do(
    hidden: int, inner: int, queries: int, keys: int, dim: int, rank: int, quantization: str, cache_in_fp8: bool
) -> None:
    """Again and again, as flags pass between their programs. The last of the layers has no norms of heads."""
    weights = _policy(hidden, inner, queries, keys, dim, rank, in_fp8=quantization == "fp8")
    ours, plain = TritonOperations(weights), PlainOperations(weights, 0)
    assert ours._gated_projection is not None
    assert ours._rotated_projection is not None
    for adds in (ours._output_projection, ours._down_projection):
        assert (adds is not None) == (hidden == 4096), "of others too few multiprocessors would have something to do"
    caches = [Cache(weights, CacheShape(4, in_fp8=cache_in_fp8)) for _ in range(2)]
    most = 5e-2 if weights.rounds or cache_in_fp8 else 1e-2  # a last digit of 8 bits is much
    for rows in (1, 64, 77, 128):
        positions = torch.randint(300, (rows,), device="cuda")
        for index, layer in list(enumerate(weights.layers)) * 3:
            slots = torch.randperm(512, device="cuda")[:rows]
            residual, mixed, gates = (
                torch.randn(rows, width, device="cuda").bfloat16() for width in (hidden, queries * dim, inner)
            )
            gates *= (queries * dim / inner) ** 0.5  # so that both projections add as much
            mixed = _with_garbage_behind(mixed)
            below = plain.rounded(gates) if weights.rounds else Rows(gates)
            found = []
            for do, cache in ((ours, caches[0].layer(index)), (plain, caches[1].layer(index))):
                stream = residual.clone()
                addition = do.project_down(stream, below, layer, layer.attention_norm)
                heads = do.project_heads(stream, addition, layer, positions, slots, cache)
                addition = do.project_output(stream, mixed, layer)
                gated = do.project_gated(stream, addition, layer)
                kept = [each.gathered(torch.arange(4, device="cuda")[None], 512, torch.bfloat16) for each in cache]
                found.append((stream, heads, Rows(gated.values.bfloat16(), gated.scale).scaled, *kept))
            for mine, other in zip(*found, strict=True):
                assert relative(mine, other) < most


def _with_garbage_behind(x: torch.Tensor) -> torch.Tensor:
    """Whole tiles are read, whatever lies behind the rows."""
    memory = torch.full((streaming.ROWS, x.shape[1]), torch.nan, device="cuda", dtype=x.dtype)
    memory[: len(x)] = x
    return memory[: len(x)]


def _policy(hidden: int, inner: int, queries: int, keys: int, dim: int, rank: int, *, in_fp8: bool) -> PolicyWeights:
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "head_dim": dim}
    heads = {"num_attention_heads": queries, "num_key_value_heads": keys}
    shape = AutoConfig.for_model("qwen3", vocab_size=128, num_hidden_layers=2, **sizes, **heads)
    with CUDA:
        model: Any = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).requires_grad_(False)
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
    if in_fp8:
        fp8.convert(base_model(model))
    del base_model(model).model.layers[-1].self_attn.q_norm
    weights = PolicyWeights(model, context=300)
    weights.refresh()
    return weights


def test_a_long_sum_in_parts_is_that_of_one_product() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(1024, 128, bias=False, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(100, 1024, device="cuda", dtype=torch.bfloat16)
    product = linear.fused([layer], torch.bfloat16)(Rows(x))
    assert product.parts == 4
    assert relative(product.values.sum(0), layer(x)) < 3e-3


@pytest.mark.parametrize("fewest", [8, 9])
@pytest.mark.parametrize(
    ("quantization", "cache_in_fp8", "most"),
    [("none", False, 0.03), ("none", True, 0.05), ("nf4", False, 0.03), ("fp8", False, 0.1), ("fp8", True, 0.1)],
)
def test_the_engine_samples_from_what_the_modules_compute(
    quantization: str, cache_in_fp8: bool, most: float, fewest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longer prompt has two blocks that its eight answers share."""
    monkeypatch.setattr(sharing, "FEWEST_ROWS", fewest)
    live = in_four_bits("qwen3", tmp_path) if quantization == "nf4" else on_gpu("qwen3")
    if quantization == "fp8":
        fp8.convert(base_model(live.model))
    engine = fast_policies.engine(live, cache_in_fp8=cache_in_fp8)
    decoder = engine._decoder
    decoder._shared._fewest_tokens = 16

    async def answers() -> list[float]:
        await engine.start()
        apart = []
        for prompt in ((5, 6, 7), tuple(range(5, 40))):
            for completion in await engine.generate(Request(prompt, Sampling(max_tokens=24, ignore_end=True), n=8)):
                ids = torch.tensor([[*prompt, *completion.tokens]], device="cuda")
                with live.training(), torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                    logits = live.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
                modules = logits.gather(-1, ids[0, len(prompt) :, None]).squeeze(-1)
                apart.append(float((torch.tensor(completion.logprobs).cuda() - modules).abs().mean()))
        assert decoder._shared.count.item() == 1
        await engine.stop()
        return apart

    apart = asyncio.run(answers())
    assert sum(apart) / len(apart) < most
    looking = {work.shares for work in decoder._graphs if work.size == 8}
    assert looking == ({False} if fewest > 8 else {False, True} if cache_in_fp8 else {True})


@pytest.mark.parametrize("architecture", ["gemma3_text", "qwen3_moe", "qwen3_next"])
async def test_other_families_are_served_and_trained_by_their_own_modules(architecture: str, tmp_path: Path) -> None:
    model = families.saved(architecture, tmp_path / "model")
    policy = load_backend(config(model, gradient_checkpointing=None), tmp_path)
    assert policy.engine.name == "transformers"
    policy.step(prepare(groups(0), policy.rules, policy.version), 5e-2)
    await policy.engine.start()
    answers = await families.sampled(policy)
    await policy.engine.stop()
    for prompt, completions in answers:
        for completion in completions:
            expected = fast_policies.reference_logprobs(policy.live, prompt, completion, 1.0)
            assert completion.logprobs == pytest.approx(expected, abs=1e-2)
    figures = policy.step(prepare(families.scored(answers), policy.rules, policy.version), 1e-2)
    assert figures["sampling/logprob_difference"] < 1e-3
    assert figures["gradient_norm"] > 0
