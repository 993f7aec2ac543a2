"""Compares every Triton kernel with its plain twin, in Triton's interpreter; run as a program of its own because the
interpreter has to be chosen before Triton is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from clotho_trainer.inference.paged import kernels
from clotho_trainer.inference.paged.linear import Rows
from clotho_trainer.inference.paged.reference_ops import PlainOperations
from clotho_trainer.inference.paged.weights import PolicyWeights
from clotho_trainer.model import fp8
from clotho_trainer.model.architecture import base_model
from integration.trainer.fast_policies import CONTEXT, policy

ROWS, BLOCK_SIZE = 5, 16


def compare(architecture: str, *, in_fp8: bool) -> None:
    model = policy(architecture).model
    if in_fp8:
        fp8.convert(base_model(model))
    weights = PolicyWeights(model, CONTEXT)
    weights.refresh()
    assert weights.rounds is in_fp8
    ours, plain = kernels.TritonOperations(weights), PlainOperations(weights, 0)
    layer, hidden = weights.layers[0], weights.embedding.shape[1]

    residual = torch.randn(ROWS, hidden)
    scale = torch.rand(ROWS, 1) if in_fp8 else None
    addition = Rows(torch.randn(ROWS, hidden + 64), scale)
    residuals = [residual.clone(), residual.clone()]
    for more in (addition, None):
        normed = [
            do.add_and_norm(r, more, layer.mlp_norm, rounds=in_fp8)
            for do, r in zip((ours, plain), residuals, strict=True)
        ]
        same_rows(*normed)
        same(*residuals)
    if in_fp8:
        same_rows(ours.rounded(residual), plain.rounded(residual))

    qkv = layer.qkv(normed[0])
    positions = torch.tensor([0, 3, 16, 40, 63])
    slots = torch.tensor([17, 35, 48, 90, 111])
    caches = [torch.randn(9, weights.kv_heads, BLOCK_SIZE, weights.head_dim) for _ in range(2)]
    stored = [[cache.clone() for cache in caches] for _ in range(2)]
    queries = [
        do.rotate_and_store(qkv, layer, positions, slots, *cache)
        for do, cache in zip((ours, plain), stored, strict=True)
    ]
    same(*queries)
    same(torch.stack(stored[0]), torch.stack(stored[1]))

    gate_up = layer.gate_up(normed[0])
    same_rows(*(do.gated(gate_up, layer.gate_up.width, rounds=in_fp8) for do in (ours, plain)))

    tables = torch.stack([torch.randperm(8)[:4] + 1 for _ in range(ROWS)]).int()
    for kernels._PROGRAMS in (1, 40):  # one share of the keys a row, and several
        same(*(do.attend(queries[0], *caches, positions, tables) for do in (ours, plain)))

    large = [torch.randn(9, weights.kv_heads, 4 * kernels._TILE, weights.head_dim) for _ in range(2)]
    ends = torch.tensor([0, kernels._TILE - 1, kernels._TILE, 100, 200])
    for kernels._PROGRAMS in (1, 40):  # blocks of several tiles
        same(*(do.attend(queries[0], *large, ends, tables[:, :2]) for do in (ours, plain)))

    logits = torch.randn(ROWS, 9000) * 3
    seeds, temperatures = torch.arange(ROWS), torch.tensor([0.0, 0.0, 0.5, 1.0, 2.0])
    tokens, logprobs = ours.sample(logits, temperatures, seeds, positions)
    assert tokens[:2].tolist() == logits[:2].argmax(-1).tolist()
    assert len(set(tokens.tolist())) == ROWS
    scaled = logits / torch.where(temperatures > 0, temperatures, 1.0)[:, None]
    same(logprobs, scaled.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1))


def same_rows(left: Rows, right: Rows) -> None:
    """The interpreter rounds wrongly to 8 bits where the result is the next power of two: one number in twenty."""
    assert left.values.dtype == right.values.dtype
    if left.scale is None or right.scale is None:
        same(left.values, right.values)
        return
    same(left.scale, right.scale)
    equal = (left.values.float() == right.values.float()).float().mean()
    assert equal > 0.9, equal


def same(left: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    for name in ("qwen3", "qwen2"):
        for in_fp8 in (False, True):
            with torch.no_grad():
                compare(name, in_fp8=in_fp8)
