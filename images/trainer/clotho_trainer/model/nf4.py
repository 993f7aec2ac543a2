"""Linear layers whose weights are in 4 bits (QLoRA), as bitsandbytes packs them."""

from typing import Any

import torch


def is_packed(module: Any) -> bool:
    return getattr(getattr(module, "weight", None), "quant_state", None) is not None


def unpack(linear: Any, out: torch.Tensor) -> None:
    from bitsandbytes.functional import dequantize_4bit

    weight = linear.weight
    if out.is_cuda:
        dequantize_4bit(weight.data, weight.quant_state, out=out)
    else:  # where bitsandbytes cannot write into given memory
        out.copy_(dequantize_4bit(weight.data, weight.quant_state))
