"""The frozen base in 8 bits. Weights are rounded once, with one scale for a decoder layer; what they are multiplied
with is rounded row by row as it comes. Adapters, norms, embedding and head stay as they are; only the gradient goes
back through a head in 8 bits."""

import logging
from typing import Any, NamedTuple

import torch

from clotho_trainer.failures import TrainerError

log = logging.getLogger(__name__)

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of FP8
LEAST = 1e-12  # keeps rows of zeros from dividing by zero
_ALIGNMENT = 16  # tensor cores require it of both sides of a matrix
_CAPABILITY = (8, 9)  # the first with such tensor cores
_PROBE_TOKENS = 512


def incapable_gpu() -> str | None:
    """The name of this machine's GPU, if that has no arithmetic for 8-bit floats."""
    if torch.cuda.get_device_capability() < _CAPABILITY:
        return torch.cuda.get_device_name()
    return None


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row in 8 bits, and what to multiply it with."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=LEAST) / LARGEST
    return (wide / scale).to(FP8), scale


def product(rows: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rounded rows times a rounded weight; a machine without such cores computes the same in single precision."""
    if rows.is_cuda:
        columns = scale.expand(1, len(weight)).contiguous()
        return torch._scaled_mm(
            rows, weight.t(), scale_a=scales, scale_b=columns, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    return (rows.float() * scales) @ (weight.float() * scale).t()


def _rounded_on_gpu(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from clotho_trainer.model.rounding import round_rows

    result: tuple[torch.Tensor, torch.Tensor] = round_rows(x)
    return result


def _shapes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x, dtype=FP8), x.new_empty(x.shape[0], 1, dtype=torch.float32)


# An operation for the compiler to leave as it is: its own would read long rows twice. As with nf4, without custom_op.
_library: Any = torch.library.Library("clotho", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("round_rows(Tensor x) -> (Tensor, Tensor)")
_library.impl("round_rows", rounded, "CPU")
_library.impl("round_rows", _rounded_on_gpu, "CUDA")
torch.library.register_fake("clotho::round_rows", _shapes, lib=_library)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, turned: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(turned, scale)
        rows, scales = torch.ops.clotho.round_rows(x)
        return product(rows, scales, weight, scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        rows, scales = torch.ops.clotho.round_rows(gradients[0])
        return product(rows, scales, *ctx.saved_tensors).to(gradients[0].dtype), None, None, None


def _multiply(x: torch.Tensor, weight: torch.Tensor, turned: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _Multiply.apply(x, weight, turned, scale)
    return result


# The compiler of torch 2.11 gets gradients of such functions wrong, in silence, when it reads them itself.
torch.compiler.allow_in_graph(_multiply)  # type: ignore[no-untyped-call]


class Fp8Linear(torch.nn.Module):
    """Holds the weight twice, in the layout of each pass: together as large as it was in bfloat16."""

    weight: torch.Tensor
    turned: torch.Tensor
    scale: torch.Tensor

    def __init__(self, linear: torch.nn.Linear, scale: torch.Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        weight = (linear.weight.detach().float() / scale).to(FP8)
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("turned", weight.t().contiguous(), persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, self.in_features)
        y = _multiply(flat, self.weight, self.turned, self.scale)
        if self.bias is not None:
            y = y + self.bias
        return y.view(*x.shape[:-1], self.out_features)


class Turned(NamedTuple):
    """A weight in 8 bits, in the layout of the backward pass."""

    weight: torch.Tensor
    scale: torch.Tensor


def turned_head(inner: Any) -> Turned | None:
    """The frozen head of a base in 8 bits."""
    head = inner.lm_head
    return Turned(head.turned, head.scale) if hasattr(head, "turned") else None


def _turn_head(head: torch.nn.Linear) -> None:
    weight = head.weight.detach()
    if head.weight.requires_grad or any(size % _ALIGNMENT for size in weight.shape):
        return
    scale = weight.abs().amax().float().clamp(min=LEAST) / LARGEST
    head.register_buffer("turned", (weight.float() / scale).to(FP8).t().contiguous(), persistent=False)
    head.register_buffer("scale", scale, persistent=False)


def convert(inner: Any) -> None:
    """Replace the linear layers of every decoder layer, below their adapters, and log what that does to the policy.
    `inner` is the Hugging Face model itself."""
    if inner.device.type == "cuda" and inner.dtype != torch.bfloat16:
        raise TrainerError("InvalidConfig", f"model.quantization fp8 needs model.dtype bfloat16, not {inner.dtype}")
    before = _probe(inner)
    with torch.no_grad():
        for layer in inner.model.layers:
            _convert_layer(layer)
        _turn_head(inner.lm_head)
    apart = (_probe(inner) - before).abs()
    log.info(
        "the base computes in 8 bits: on %d tokens its log-probabilities change by %.3g on average, at most %.3g",
        apart.numel(),
        apart.mean(),
        apart.max(),
    )


def _convert_layer(layer: torch.nn.Module) -> None:
    found = [
        (parent, name, child)
        for parent in layer.modules()
        for name, child in parent.named_children()
        if type(child) is torch.nn.Linear and not child.weight.requires_grad
    ]
    largest = torch.stack([linear.weight.abs().amax() for _, _, linear in found]).amax().float()
    scale = largest.clamp(min=LEAST) / LARGEST
    for parent, name, linear in found:
        if linear.in_features % _ALIGNMENT or linear.out_features % _ALIGNMENT:
            shape = f"{linear.out_features} x {linear.in_features}"
            raise TrainerError(
                "InvalidConfig",
                f"model.quantization fp8 needs multiples of 16; {name} is {shape}",
            )
        setattr(parent, name, Fp8Linear(linear, scale))


@torch.no_grad()
def _probe(inner: Any) -> torch.Tensor:
    """Log-probabilities of random tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(inner.config.vocab_size, (1, _PROBE_TOKENS), generator=generator).to(inner.device)
    logits = inner(input_ids=ids).logits[0, :-1].float()
    logprobs: torch.Tensor = logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1)
    return logprobs
