"""Linear layers whose weights are in 4 bits (QLoRA), as bitsandbytes packs them: a block of weights shares a scale in
8 bits, and a block of scales one in single precision."""

from typing import Any, NamedTuple

import torch
from torch.nn import functional


class Packed(NamedTuple):
    """A weight in 4 bits; the tensors are those of bitsandbytes."""

    weight: torch.Tensor  # two indices into `values` in a byte
    values: torch.Tensor
    scales: torch.Tensor  # of each block of weights: an index into `levels`
    levels: torch.Tensor
    scale_scales: torch.Tensor  # of each block of scales
    offset: torch.Tensor  # of all scales


SCALE_BLOCK = 256  # scales that share one


def is_packed(module: Any) -> bool:
    return isinstance(module, Nf4Linear) or getattr(getattr(module, "weight", None), "quant_state", None) is not None


def unpack(packed: Packed, block: int, out: torch.Tensor) -> None:
    if out.is_cuda and out.is_contiguous() and out.numel() % block == 0:
        from clotho_trainer.model import nf4_kernels

        nf4_kernels.unpack(packed, block, SCALE_BLOCK, out)
    else:
        out.copy_(_unpacked_by_bitsandbytes(packed, block, list(out.shape), out.dtype))


def _unpacked_by_bitsandbytes(packed: Packed, block: int, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    import bitsandbytes  # noqa: F401 - registers its operations

    operations = torch.ops.bitsandbytes
    scales = operations.dequantize_blockwise(
        packed.scales, packed.scale_scales, packed.levels, SCALE_BLOCK, torch.float32
    )
    unpacked: torch.Tensor = operations.dequantize_4bit(
        packed.weight, scales + packed.offset, block, "nf4", shape, dtype
    )
    return unpacked


# One operation for the compiler, which would keep the unpacked weight for the backward pass if it saw it. Defined
# without torch.library.custom_op, whose calls cost several times as much: there are seven in each layer.
_library: Any = torch.library.Library("clotho", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("nf4_multiply(Tensor x, Tensor[] packed, int block, int outputs, int inputs, bool turned) -> Tensor")


def _product(
    x: torch.Tensor, packed: list[torch.Tensor], block: int, outputs: int, inputs: int, turned: bool
) -> torch.Tensor:
    """x W' or, turned, x W."""
    weight = x.new_empty(outputs, inputs)
    unpack(Packed(*packed), block, weight)
    return x @ weight if turned else functional.linear(x, weight)


def _shape(
    x: torch.Tensor, packed: list[torch.Tensor], block: int, outputs: int, inputs: int, turned: bool
) -> torch.Tensor:
    return x.new_empty(x.shape[0], inputs if turned else outputs)


_library.impl("nf4_multiply", _product, "CPU")
_library.impl("nf4_multiply", _product, "CUDA")
torch.library.register_fake("clotho::nf4_multiply", _shape, lib=_library)


class _Multiply(torch.autograd.Function):
    """Keeps nothing but the packed weight: the backward pass unpacks it again."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, block: int, outputs: int, inputs: int, *packed: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(*packed)
        ctx.layout = (block, outputs, inputs)
        result: torch.Tensor = torch.ops.clotho.nf4_multiply(x, list(packed), *ctx.layout, False)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        packed = list(ctx.saved_tensors)
        to_x = torch.ops.clotho.nf4_multiply(gradients[0].contiguous(), packed, *ctx.layout, True)
        return to_x, None, None, None, *[None] * len(packed)


def _multiply(x: torch.Tensor, block: int, outputs: int, inputs: int, *packed: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _Multiply.apply(x, block, outputs, inputs, *packed)
    return result


# As with fp8: the compiler must not read such a function itself.
torch.compiler.allow_in_graph(_multiply)  # type: ignore[no-untyped-call]


class Nf4Linear(torch.nn.Module):
    """Computes what bitsandbytes' layer does, over the same memory, and can be compiled."""

    weight: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor
    levels: torch.Tensor
    scale_scales: torch.Tensor
    offset: torch.Tensor

    def __init__(self, linear: Any) -> None:
        super().__init__()
        state = linear.weight.quant_state
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.block: int = state.blocksize
        self.compute_dtype: torch.dtype = linear.compute_dtype or state.dtype
        self.bias = linear.bias
        scales = state.state2
        packed = Packed(linear.weight.data, state.code, state.absmax, scales.code, scales.absmax, state.offset)
        for name, tensor in packed._asdict().items():
            self.register_buffer(name, tensor, persistent=False)

    @property
    def packed(self) -> Packed:
        return Packed(self.weight, self.values, self.scales, self.levels, self.scale_scales, self.offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, self.in_features).to(self.compute_dtype)
        y = _multiply(flat, self.block, self.out_features, self.in_features, *self.packed)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.view(*x.shape[:-1], self.out_features).to(x.dtype)


def convert(inner: Any) -> None:
    """Replace bitsandbytes' layers in every decoder layer, below their adapters. `inner` is the Hugging Face model
    itself, loaded with double quantisation."""
    for layer in inner.model.layers:
        found = [
            (parent, name, child)
            for parent in layer.modules()
            for name, child in parent.named_children()
            if is_packed(child) and not hasattr(child, "base_layer")
        ]
        for parent, name, linear in found:
            setattr(parent, name, Nf4Linear(linear))
