"""Compares every Triton kernel with its plain twin, in Triton's interpreter; run as a program of its own because the
interpreter has to be chosen before Triton is imported."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from clotho_trainer.inference.core.engine import Request, Sampling
from clotho_trainer.inference.paged import attention, kernels, sampling, sharing
from clotho_trainer.inference.paged.cache import Cache, CacheShape, LayerCache
from clotho_trainer.inference.paged.device_rows import DeviceRows
from clotho_trainer.inference.paged.linear import Rows
from clotho_trainer.inference.paged.reference_ops import PlainOperations
from clotho_trainer.inference.paged.sharing import QUERIES, SharedPrompts
from clotho_trainer.inference.paged.weights import Layer, PolicyWeights
from clotho_trainer.model import fp8
from clotho_trainer.model.architecture import base_model
from clotho_trainer.training.local import adapted_gating_kernels, gating
from integration.trainer import fast_policies
from integration.trainer.fast_policies import CONTEXT, policy, reference_logprobs

ROWS, BLOCK_SIZE = 5, 16


def compare(architecture: str, rank: int, *, in_fp8: bool) -> None:
    """In 8 bits are both the base and the cache."""
    model = policy(architecture, rank=rank).model
    if in_fp8:
        fp8.convert(base_model(model))
    weights = PolicyWeights(model, CONTEXT)
    weights.refresh()
    assert weights.rounds is in_fp8
    ours, plain = kernels.TritonOperations(weights), PlainOperations(weights, 0)
    layer, hidden = weights.layers[0], weights.embedding.shape[1]

    residual = torch.randn(ROWS, hidden)
    scale = torch.rand(ROWS, 1) if in_fp8 else None
    addition = Rows(torch.randn(ROWS, hidden + 64)[:, :hidden], scale)
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
    compare_completed(ours, plain, layer, residual)
    if not in_fp8:
        compare_weighed(ours, plain, layer, residual)
    compare_stepping(ours, plain)

    positions = torch.tensor([0, 3, 16, 40, 63])
    slots = torch.tensor([17, 35, 48, 90, 111])
    caches = [Cache(weights, CacheShape(9, BLOCK_SIZE, in_fp8=in_fp8)).layer(0) for _ in range(2)]
    queries = [
        do.rotate_and_store(normed[0], layer, positions, slots, cache)
        for do, cache in zip((ours, plain), caches, strict=True)
    ]
    same(*queries)
    for left, right in zip(*caches, strict=True):
        same_rows(Rows(*left), Rows(*right))
    compare_attention(ours, plain, queries[0], positions, in_fp8=in_fp8)

    same_rows(*(do.gated(layer.gate_up, normed[0], rounds=in_fp8) for do in (ours, plain)))

    logits = torch.randn(ROWS, 9000) * 3
    seeds, temperatures = torch.arange(ROWS), torch.tensor([0.0, 0.0, 0.5, 1.0, 2.0])
    tokens, logprobs = ours.sample(logits, temperatures, seeds, positions)
    assert tokens[:2].tolist() == logits[:2].argmax(-1).tolist()
    assert len(set(tokens.tolist())) == ROWS
    scaled = logits / torch.where(temperatures > 0, temperatures, 1.0)[:, None]
    same(logprobs, scaled.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1))


def compare_completed(
    ours: kernels.TritonOperations, plain: PlainOperations, layer: Layer, residual: torch.Tensor
) -> None:
    """What is added has its adapters still beside it, and may come in parts."""
    in_fp8 = plain._weights.rounds
    mixed = torch.randn(ROWS, plain._weights.query_heads * plain._weights.head_dim)
    product = layer.output(plain.rounded(mixed) if in_fp8 else Rows(mixed))
    in_parts = product._replace(values=torch.stack([0.25 * product.values, 0.75 * product.values]))
    expected = residual.clone()
    normed = plain.add_and_norm(expected, copied(product), layer.mlp_norm, rounds=in_fp8)
    for do, addition in ((ours, product), (ours, in_parts), (plain, in_parts)):
        found = residual.clone()
        same_rows(do.add_and_norm(found, addition, layer.mlp_norm, rounds=in_fp8), normed)
        same(found, expected)


def compare_weighed(
    ours: kernels.TritonOperations, plain: PlainOperations, layer: Layer, residual: torch.Tensor
) -> None:
    """The norm is left to the end of the product, and applied here. Several stretches of columns."""
    usual, hidden = kernels._WEIGHED["BLOCK"], residual.shape[1]
    kernels._WEIGHED["BLOCK"] = hidden // 4
    mixed = torch.randn(ROWS, plain._weights.query_heads * plain._weights.head_dim)
    expected, found = residual.clone(), residual.clone()
    for addition in (layer.output(Rows(mixed)), None):
        more = None if addition is None else copied(addition)
        normed = plain.add_and_norm(expected, more, layer.mlp_norm, rounds=False)
        weighed = ours._weighed(found, addition, layer.mlp_norm)
        same(found, expected)
        squares = weighed.squares[:ROWS].sum(1)[:, None]
        same(weighed.values * torch.rsqrt(squares / hidden + plain._weights.epsilon), normed.values)
    kernels._WEIGHED["BLOCK"] = usual


def compare_gating(ranks: int, step: int) -> None:
    """More rows and columns than one program has, and not whole programs of them."""
    rows, width = 70, 150
    gate_up, below, up, slope, back, down = (
        torch.randn(*shape)
        for shape in ((rows, 2 * width), (rows, 96), (2 * width, 96), (rows, width), (rows, 64), (64, width))
    )
    if step:  # block by block
        up[:width, ranks:], up[width:, :step], up[width:, step + ranks :] = 0, 0, 0
    adapters = gating.Adapters(below, up, ranks, step)
    same(adapted_gating_kernels.gate(gate_up, *adapters), gating.gate_adapted(gate_up, adapters), 1e-4)
    found = adapted_gating_kernels.gradient(slope, back, down, gate_up, *adapters)
    same(found, gating.gradient_adapted(slope, back, down, gate_up, adapters), 1e-4)


def compare_stepping(ours: kernels.TritonOperations, plain: PlainOperations) -> None:
    """Two steps of the first rows, one of which is at its end; the others stay as they are."""
    sides = [DeviceRows(ROWS + 3, 4, 2, torch.device("cpu")) for _ in range(2)]
    for rows in sides:
        rows.tokens.copy_(torch.arange(ROWS + 3) * 7)
        rows.positions.copy_(torch.tensor([0, 3, 16, 40, 62, 5, 5, 5]))
        rows.last.copy_(torch.tensor([9, 9, 16, 60, 63, 9, 9, 9]))
        rows.tables.copy_(torch.arange(4 * (ROWS + 3)).view(-1, 4))
        rows.cached.copy_(torch.tensor([0, 4, 17, 0, 63, 0, 0, 0]))
    for step in range(2):
        entered = [do.enter(rows, ROWS, BLOCK_SIZE) for do, rows in zip((ours, plain), sides, strict=True)]
        for left, right in zip(*entered, strict=True):
            assert torch.equal(left, right)
        if step == 0:
            assert entered[0][1].tolist() == [0, 3, 0, 232, 14], "what is cached is written where none reads"
        drawn = torch.arange(ROWS) + 11 * step, -torch.rand(ROWS)
        for do, rows in zip((ours, plain), sides, strict=True):
            do.advance(rows, *drawn)
        for left, right in zip(*(vars(rows).values() for rows in sides), strict=True):
            assert torch.equal(left, right)
    assert sides[0].positions.tolist() == [2, 5, 16, 42, 63, 5, 5, 5]
    assert sides[0].taken.item() == 2


def compare_distribution(ours: kernels.TritonOperations, count: int = 400) -> None:
    """Likely tokens in different columns, lines and stretches of 64, and impossible ones among them."""
    logits = torch.full((200,), float("-inf"))
    likely = torch.tensor([0, 1, 7, 8, 63, 64, 127, 199])
    logits[likely] = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0, 0.0, 1.5, 1.0])
    rows, usual = logits.expand(count, -1).contiguous(), sampling._SIDE
    sampling._SIDE = 8
    tokens, _ = ours.sample(rows, torch.full((count,), 0.8), torch.arange(count), torch.full((count,), 7))
    sampling._SIDE = usual
    shares, expected = torch.bincount(tokens, minlength=200) / count, (logits / 0.8).softmax(-1)
    assert ((shares - expected).abs() <= 5 * (expected / count).sqrt()).all(), (shares[likely], expected[likely])


def copied(product: Rows) -> Rows:
    """The plain operations complete it in place."""
    return product._replace(values=product.values.clone())


def compare_attention(
    ours: kernels.TritonOperations,
    plain: PlainOperations,
    query: torch.Tensor,
    positions: torch.Tensor,
    *,
    in_fp8: bool,
) -> None:
    """The kernel multiplies with 16 bits where the cache has 8."""
    closeness = 2e-3 if in_fp8 else 1e-5
    tile = attention._OF_A_ROW[in_fp8]["TILE"]
    tables = torch.stack([torch.randperm(8)[:4] + 1 for _ in range(ROWS)]).int()
    ends = torch.tensor([0, tile - 1, tile, 100, 200])
    for block_size, last in ((BLOCK_SIZE, positions), (4 * tile, ends)):  # one tile a block, and several
        cache = full_cache(plain._weights, block_size, in_fp8=in_fp8)
        sides = [do.gather(cache, tables, 2 * block_size + 3) for do in (ours, plain)]
        same(*(torch.stack(side) for side in sides))
        for attention._PROGRAMS in (1, 40):  # one share of the keys a row, and several
            same(*(do.attend(query, cache, last, tables, None) for do in (ours, plain)), closeness)


def compare_shared(*, in_fp8: bool) -> None:
    """Three query heads a key head: tiles are padded. With four rows a tile: one that lacks a member, rows that share
    nothing, more members than a tile has, a full tile; then a tile of as many as the matrix unit takes."""
    weights: Any = SimpleNamespace(query_heads=6, kv_heads=2, head_dim=16, layers=[None], dtype=torch.float32)
    weights.device = torch.device("cpu")
    operations = kernels.TritonOperations(weights), PlainOperations(weights, 0)
    tile = attention._OF_A_ROW[in_fp8]["TILE"]
    some, many = [(3, 1, 2), (1, 2, 0), (1, 3, 0), (5, 4, 3), (4, 5, 1)], [(21, 1, 2)]
    for block_size, groups, queries_a_row, expected in (
        (BLOCK_SIZE, some, QUERIES // 4, [(0, 3, 2), (5, 2, 3), (7, 3, 3), (10, 4, 1)]),
        (4 * tile, some, QUERIES // 4, [(0, 3, 2), (5, 2, 3), (7, 3, 3), (10, 4, 1)]),
        (BLOCK_SIZE, many, 3, [(0, 21, 2)]),
    ):
        cache = full_cache(weights, block_size, in_fp8=in_fp8)
        tables, positions = rows_of(groups, block_size)
        shared = SharedPrompts(len(tables), queries_a_row, weights.device)
        shared.load(tables, positions, block_size)
        found = shared.tiles[: shared.count].tolist()
        assert found == [[row, members, blocks * block_size] for row, members, blocks in expected]
        query = torch.randn(len(tables), weights.query_heads * weights.head_dim)
        where = torch.tensor(positions), torch.tensor(tables, dtype=torch.int32)
        for attention._PROGRAMS, attention._SHARED_SPLITS in (
            (1, 1),
            (1, 4),
            (40, 4),
        ):  # parts of a row's keys, of what is shared
            same(*(do.attend(query, cache, *where, shared) for do in operations), 2e-3 if in_fp8 else 1e-5)


def rows_of(groups: list[tuple[int, int, int]], block_size: int) -> tuple[list[list[int]], list[int]]:
    """Tables and positions of groups: members, the first block, how many blocks they share. The first member is about
    to write its first token behind them."""
    tables, positions = [], []
    for members, first, common in groups:
        for member in range(members):
            prompt = [first, 6, 7][: max(common, 1)]
            tables.append(prompt + (torch.randperm(8)[: 4 - len(prompt)] + 1).tolist())
            ahead = int(torch.randint((4 - common) * block_size, ())) if member else 0
            positions.append(common * block_size + ahead)
    return tables, positions


async def compare_answers(*, in_fp8: bool) -> None:
    """Answers to one prompt of two blocks and a half; the interpreter's arithmetic is that of the modules."""
    live, prompt = policy("qwen3"), tuple(range(5, 45))
    engine = fast_policies.engine(live, cache_in_fp8=in_fp8)
    attention._PROGRAMS = 8
    engine._decoder._shared._fewest_tokens = BLOCK_SIZE
    await engine.start()
    completions = await engine.generate(Request(prompt, Sampling(max_tokens=3, ignore_end=True), n=3))
    assert engine._decoder._shared.tokens[:3].tolist() == [32] * 3
    completions += await engine.generate(Request(prompt, Sampling(max_tokens=3, ignore_end=True), n=2))  # now known
    await engine.stop()
    assert engine._decoder._shared.tokens[:3].tolist() == [32, 32, 0]
    for completion in completions:
        found = torch.tensor(completion.logprobs), torch.tensor(reference_logprobs(live, prompt, completion, 1.0))
        same(*found, 0.05 if in_fp8 else 1e-4)


def full_cache(weights: PolicyWeights, block_size: int, *, in_fp8: bool) -> LayerCache:
    """Keys and values of different sizes in each token, values as small as those of real models."""
    cache = Cache(weights, CacheShape(9, block_size, in_fp8=in_fp8)).layer(0)
    slots = torch.arange(9 * block_size)
    for blocks, size in zip(cache, (1.0, 0.01), strict=True):
        rows = torch.randn(len(slots), weights.kv_heads, weights.head_dim)
        blocks.write(slots, rows * torch.rand(len(slots), 1, 1) * size)
    return cache


def same_rows(left: Rows, right: Rows) -> None:
    """The interpreter rounds wrongly to 8 bits where the result is the next power of two: one number in twenty."""
    assert left.values.dtype == right.values.dtype
    if left.scale is None or right.scale is None:
        same(left.values, right.values)
        return
    same(left.scale, right.scale)
    equal = (left.values.float() == right.values.float()).float().mean()
    assert equal > 0.9, equal


def same(left: torch.Tensor, right: torch.Tensor, closeness: float = 1e-5) -> None:
    size = right.abs().max().clamp(max=1.0).item()
    torch.testing.assert_close(left, right, rtol=closeness, atol=closeness * size)


if __name__ == "__main__":
    sharing.FEWEST_ROWS = 2
    torch.use_deterministic_algorithms(True)  # fills what has not been written with NaN
    for in_fp8 in (False, True):
        with torch.no_grad():
            for name, rank in (("qwen3", 4), ("qwen3", 48), ("qwen2", 16)):  # the second has a module's ranks in parts
                compare(name, rank, in_fp8=in_fp8)
            compare_shared(in_fp8=in_fp8)
        asyncio.run(compare_answers(in_fp8=in_fp8))
    compare_distribution(kernels.TritonOperations(PolicyWeights(policy("qwen3").model, CONTEXT)))
    for ranks, step in ((16, 16), (48, 48), (96, 0)):
        compare_gating(ranks, step)
