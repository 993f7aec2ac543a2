"""Sequences of different lengths decoded together: a cache whose rows come and go, with keys and values aligned on the
right, and one state a row where layers attend linearly."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from clotho_trainer.failures import TrainerError


class RaggedBatch:
    """Row r has `lengths[r]` cached tokens in the right-most columns; what lies left of them is padding."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device = model.device
        self.clear()

    def clear(self) -> None:
        self._cache = _empty_cache(self._model)
        self._columns = 0  # as many as the longest row needs
        self._lengths = torch.zeros(0, dtype=torch.long, device=self._device)
        self._is_even = True  # no padding anywhere: attention then needs no mask and takes its fastest path

    def __len__(self) -> int:
        return len(self._lengths)

    def join(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> torch.Tensor:
        """Read each prompt once, add it `copies` times, and give the logits after it for every new row."""
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=self._device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        is_even = all(len(prompt) == longest for prompt in prompts)
        cache = _empty_cache(self._model)
        columns = torch.arange(longest, device=self._device)
        positions = columns - (longest - lengths)[:, None]
        logits = self._forward(ids, positions.clamp(min=0), None if is_even else (positions >= 0).long(), cache)
        index = torch.repeat_interleave(
            torch.arange(len(prompts), device=self._device), torch.tensor(copies, device=self._device)
        )
        if len(index) != len(prompts):
            cache.reorder_cache(index)
        self._merge(cache, lengths[index], longest)
        return logits[index]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append one token to every row; the logits that follow."""
        mask = None if self._is_even else self._mask(self._columns + 1, self._lengths + 1)
        logits = self._forward(tokens[:, None], self._lengths[:, None], mask, self._cache)
        self._lengths = self._lengths + 1
        self._columns += 1
        return logits

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all other rows, and the columns that only they needed."""
        if len(rows) == len(self):
            return
        if not rows:
            self.clear()
            return
        index = torch.tensor(rows, device=self._device)
        self._lengths = self._lengths[index]
        self._columns = int(self._lengths.max())
        self._cache.reorder_cache(index)
        for layer in self._cache.layers:
            if _has_keys(layer):
                layer.keys, layer.values = layer.keys[:, :, -self._columns :], layer.values[:, :, -self._columns :]
        self._is_even = bool((self._lengths == self._columns).all())

    def _mask(self, columns: int, lengths: torch.Tensor) -> torch.Tensor:
        return (torch.arange(columns, device=self._device) >= (columns - lengths)[:, None]).long()

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _merge(self, cache: Any, lengths: torch.Tensor, columns: int) -> None:
        if not len(self):
            self._cache, self._lengths, self._columns = cache, lengths, columns
            self._is_even = bool((lengths == columns).all())
            return
        self._is_even = self._is_even and self._columns == columns and bool((lengths == columns).all())
        self._columns = max(self._columns, columns)
        for mine, new in zip(self._cache.layers, cache.layers, strict=True):
            if _has_keys(mine):
                mine.keys = _stacked(mine.keys, new.keys, self._columns)
                mine.values = _stacked(mine.values, new.values, self._columns)
            if _has_states(mine):
                _append_states(mine.conv_states, new.conv_states)
                _append_states(mine.recurrent_states, new.recurrent_states)
        self._lengths = torch.cat([self._lengths, lengths])


def _empty_cache(model: Any) -> Any:
    """Sliding windows keep all tokens, as rows have different ones in theirs; the model's mask hides the others."""
    cache: Any = DynamicCache(config=model.config)
    plain: Any = DynamicLayer
    cache.layers = [plain() if type(each) is DynamicSlidingWindowLayer else each for each in cache.layers]
    known = (DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)
    if other := next((each for each in cache.layers if type(each) not in known), None):
        raise TrainerError(
            "InvalidConfig",
            f"inference.engine transformers cannot serve the architecture {model.config.model_type}, "
            f"whose layers keep a {type(other).__name__}; set inference.engine vllm",
        )
    return cache


def _has_keys(layer: Any) -> bool:
    return isinstance(layer, DynamicLayer)


def _has_states(layer: Any) -> bool:
    return isinstance(layer, LinearAttentionLayer)


def _stacked(mine: torch.Tensor, new: torch.Tensor, columns: int) -> torch.Tensor:
    return torch.cat([pad(each, (0, 0, columns - each.shape[-2], 0)) for each in (mine, new)])


def _append_states(mine: dict[int, torch.Tensor | None], new: dict[int, torch.Tensor | None]) -> None:
    """Layers without a state of this kind hold None."""
    for index, state in mine.items():
        if state is not None and (added := new[index]) is not None:
            mine[index] = torch.cat([state, added])
