"""While decoding, a LoRA layer is three matrix products and nothing else: PEFT's own forward costs more in Python
than the GPU spends on the work. The adapter is never merged: small updates would be lost in the base's precision."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from clotho_trainer.model import nf4
from clotho_trainer.model.fp8 import Fp8Linear

Undo = Callable[[], None]


def lean(model: Any, dtype: torch.dtype) -> Undo:
    """Put lean forwards over the plain LoRA layers, with the adapters in `dtype`; the others stay as they are."""
    layers = list(_plain_layers(model))
    for layer, adapter in layers:
        layer.forward = _forward(layer, adapter, dtype)

    def undo() -> None:
        for layer, _ in layers:
            del layer.forward

    return undo


def plain_adapter(module: Any) -> str | None:
    """The name of the one adapter of a LoRA layer that is nothing but W x + B A x; None of any other module."""
    try:
        from peft.tuners.lora import Linear
    except ImportError:
        return None
    kind, base = type(module), getattr(module, "base_layer", None)
    is_over_plain = kind is Linear and type(base) in (torch.nn.Linear, Fp8Linear)
    is_over_packed = kind.__name__ == "Linear4bit" and nf4.is_packed(base)  # PEFT has it beside bitsandbytes only
    if not (is_over_plain or is_over_packed) or module.merged:
        return None
    active = module.active_adapters
    if len(active) != 1 or active[0] not in module.lora_A or module.lora_variant or module.lora_bias[active[0]]:
        return None
    return str(active[0])


def _plain_layers(model: Any) -> Iterator[tuple[Any, str]]:
    for module in model.modules():
        if adapter := plain_adapter(module):
            yield module, adapter


def _forward(layer: Any, adapter: str, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    base = layer.base_layer.forward
    with torch.no_grad():
        down = layer.lora_A[adapter].weight.to(dtype)
        up = (layer.lora_B[adapter].weight * layer.scaling[adapter]).to(dtype).t()

    def forward(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        output: torch.Tensor = base(x)
        output.view(-1, output.shape[-1]).addmm_(functional.linear(x, down).view(-1, down.shape[0]), up)
        return output

    return forward
