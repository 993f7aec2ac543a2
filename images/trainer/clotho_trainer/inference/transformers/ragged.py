"""Sequences of different lengths decoded together: a key-value cache whose rows come and go, aligned on the right."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache


class RaggedBatch:
    """Row r has `lengths[r]` cached tokens in the right-most columns; what lies left of them is padding."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device = model.device
        self.clear()

    def clear(self) -> None:
        self._cache: Any = DynamicCache()
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
        cache: Any = DynamicCache()
        columns = torch.arange(longest, device=self._device)
        positions = columns - (longest - lengths)[:, None]
        logits = self._forward(ids, positions.clamp(min=0), None if is_even else (positions >= 0).long(), cache)
        index = torch.repeat_interleave(
            torch.arange(len(prompts), device=self._device), torch.tensor(copies, device=self._device)
        )
        if len(index) != len(prompts):
            cache.batch_select_indices(index)
        self._merge(cache, lengths[index], longest)
        return logits[index]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append one token to every row; the logits that follow."""
        mask = None if self._is_even else self._mask(self._columns + 1, self._lengths + 1)
        logits = self._forward(tokens[:, None], self._lengths[:, None], mask, self._cache)
        self._lengths = self._lengths + 1
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
        needed = int(self._lengths.max())
        for layer in self._cache.layers:
            layer.keys = layer.keys[index, :, -needed:]
            layer.values = layer.values[index, :, -needed:]
        self._is_even = bool((self._lengths == needed).all())

    @property
    def _columns(self) -> int:
        return int(self._cache.get_seq_length())

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
            self._cache, self._lengths = cache, lengths
            self._is_even = bool((lengths == columns).all())
            return
        ours = self._columns
        self._is_even = self._is_even and ours == columns and bool((lengths == columns).all())
        width = max(ours, columns)
        for mine, new in zip(self._cache.layers, cache.layers, strict=True):
            for name in ("keys", "values"):
                parts = [getattr(mine, name), getattr(new, name)]
                wide = [pad(part, (0, 0, width - part.shape[-2], 0)) for part in parts]
                setattr(mine, name, torch.cat(wide))
        self._lengths = torch.cat([self._lengths, lengths])
