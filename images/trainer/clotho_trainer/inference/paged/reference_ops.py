"""The engine's operations in plain PyTorch: what the Triton kernels must equal, and what runs where Triton cannot.

Rounding happens where the Hugging Face modules round, so that decoding and training see the same policy.
"""

import torch
from torch.nn import functional

from clotho_trainer.inference.core.block_manager import NULL_BLOCK
from clotho_trainer.inference.paged.cache import LayerCache
from clotho_trainer.inference.paged.device_rows import DeviceRows
from clotho_trainer.inference.paged.linear import Addition, FusedLinear, Rows
from clotho_trainer.inference.paged.sharing import SharedPrompts
from clotho_trainer.inference.paged.weights import Layer, PolicyWeights
from clotho_trainer.model.fp8 import rounded


class PlainOperations:
    def __init__(self, weights: PolicyWeights, seed: int) -> None:
        self._weights = weights
        self._generator = torch.Generator(weights.device).manual_seed(seed + 1)  # not the noise of the first tokens

    def enter(self, rows: DeviceRows, size: int, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The embedded tokens of the first rows, and the slots of the cache that are theirs."""
        positions = rows.positions[:size]
        blocks = rows.tables[:size].gather(1, (positions // block_size)[:, None]).squeeze(1)
        blocks = torch.where(positions < rows.cached[:size], NULL_BLOCK, blocks)
        slots = blocks * block_size + positions % block_size
        return functional.embedding(rows.tokens[:size], self._weights.embedding), slots

    def advance(self, rows: DeviceRows, tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
        """Take what was sampled as the input of the next step. Rows that have ended stay where they are."""
        size = len(tokens)
        rows.drawn[:, :size].index_copy_(0, rows.taken, tokens[None])
        rows.logprobs[:, :size].index_copy_(0, rows.taken, logprobs[None])
        rows.taken += 1
        rows.tokens[:size] = tokens
        rows.positions[:size] = torch.minimum(rows.positions[:size] + 1, rows.last[:size])

    def project_heads(
        self,
        residual: torch.Tensor,
        addition: Addition,
        layer: Layer,
        positions: torch.Tensor,
        slots: torch.Tensor,
        cache: LayerCache,
    ) -> torch.Tensor:
        """Queries, normalised and rotated; keys and values go to their slots of the cache."""
        x = self.add_and_norm(residual, addition, layer.attention_norm, rounds=self._weights.rounds)
        return self.rotate_and_store(x, layer, positions, slots, cache)

    def project_output(self, residual: torch.Tensor, mixed: torch.Tensor, layer: Layer) -> Rows:
        """Still to be added to the residual."""
        return layer.output(self.rounded(mixed) if self._weights.rounds else Rows(mixed))

    def project_down(
        self, residual: torch.Tensor, gated: Rows, layer: Layer, following_norm: torch.Tensor | None
    ) -> Rows:
        """Likewise."""
        return layer.down(gated)

    def project_gated(self, residual: torch.Tensor, addition: Addition, layer: Layer) -> Rows:
        rounds = self._weights.rounds
        x = self.add_and_norm(residual, addition, layer.mlp_norm, rounds=rounds)
        return self.gated(layer.gate_up, x, rounds=rounds)

    def add_and_norm(self, residual: torch.Tensor, addition: Addition, weight: torch.Tensor, *, rounds: bool) -> Rows:
        """Adds to the residual in place; gives it normalised."""
        if isinstance(addition, Rows):
            residual += addition.with_adapters().scaled
        normed = self._norm(residual, weight)
        return self.rounded(normed) if rounds else Rows(normed)

    def rounded(self, x: torch.Tensor) -> Rows:
        return Rows(*rounded(x))

    def rotate_and_store(
        self, x: Rows, layer: Layer, positions: torch.Tensor, slots: torch.Tensor, cache: LayerCache
    ) -> torch.Tensor:
        """Queries, normalised and rotated; keys and values go to their slots of the cache."""
        w = self._weights
        rows = len(x.values)
        heads = layer.qkv(x).with_adapters().scaled.reshape(rows, -1, w.head_dim)
        query, key, value = torch.split(heads, [w.query_heads, w.kv_heads, w.kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
        cos, sin = (table[positions].repeat(1, 2)[:, None] for table in (w.cos, w.sin))
        cache.keys.write(slots, _rotated(key, cos, sin))
        cache.values.write(slots, value)
        return _rotated(query, cos, sin).reshape(rows, -1)

    def gated(self, linear: FusedLinear, x: Rows, *, rounds: bool) -> Rows:
        gate, up = linear(x).with_adapters().scaled.chunk(2, dim=1)
        active = functional.silu(gate) * up
        return self.rounded(active) if rounds else Rows(active)

    def gather(self, cache: LayerCache, tables: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first tokens of each row's blocks, side by side: keys and values as [row, head, token, dimension]."""
        keys, values = (blocks.gathered(tables, length, self._weights.dtype) for blocks in cache)
        return keys, values

    def attend(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        positions: torch.Tensor,
        tables: torch.Tensor,
        shared: SharedPrompts | None,
    ) -> torch.Tensor:
        """One query a row over the keys up to its position; shared ones are read for each row."""
        w = self._weights
        longest = int(positions.max()) + 1
        is_visible = torch.arange(longest, device=query.device) <= positions[:, None]
        result = functional.scaled_dot_product_attention(
            query.view(len(query), w.query_heads, 1, w.head_dim),
            *self.gather(cache, tables, longest),
            attn_mask=is_visible[:, None, None],
            enable_gqa=w.query_heads != w.kv_heads,
        )
        return result.reshape(len(query), -1)

    def sample(
        self, logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A token a row by Gumbel's trick, and its log-probability. Temperature 0 takes the likeliest."""
        is_random = (temperatures > 0)[:, None]
        scaled = logits.float() / torch.where(is_random, temperatures[:, None], 1.0)
        logprobs = scaled.log_softmax(-1)
        noise = torch.empty_like(scaled).exponential_(generator=self._generator).log()
        choice = torch.where(is_random, logprobs - noise, logprobs).argmax(-1)
        return choice, logprobs.gather(-1, choice[:, None]).squeeze(-1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._weights.epsilon)
        return weight * normed.to(x.dtype)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
