"""A model whose attention sees rounded keys and values, as an engine with such a cache does."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from clotho_trainer.model import fp8

_NAME = "rounded"


def round_keys_and_values(model: Any, rounding: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        **options: Any,
    ) -> Any:
        return sdpa_attention_forward(module, query, rounding(key), rounding(value), mask, **options)

    AttentionInterface.register(_NAME, attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    model.set_attn_implementation(_NAME)


def with_own_scales(x: torch.Tensor) -> torch.Tensor:
    """One scale for each token and head, as the engine has it."""
    values, scales = fp8.rounded(x)
    return (values.float() * scales).to(x.dtype)


def with_constant_scale(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-fp8.LARGEST, fp8.LARGEST).to(fp8.FP8).to(x.dtype)
