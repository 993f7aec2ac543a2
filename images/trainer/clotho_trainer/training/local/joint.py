"""Packed rows through the engine's matrices: linear layers with a common input are one product, and so are a base and
its adapters. With M = [[W, sB], [A, 0]], x W' + s (x A') B' is [x, x A'] times the upper rows of M; the gradient goes
back the same way through M transposed. `rounded_joint.py` is for a base in 8 bits."""

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any, NamedTuple, cast

import torch
from torch.nn import functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from clotho_trainer.inference.paged.linear import FusedFp8Linear, FusedLinear
from clotho_trainer.inference.paged.weights import Layer, PolicyWeights
from clotho_trainer.model.architecture import base_model
from clotho_trainer.training.local import gating, rounded_joint, varlen_attention
from clotho_trainer.training.local.joined import Joined, Place, in_graph, places_of
from clotho_trainer.training.local.varlen_attention import Varlen

# Operations for the compiler to leave as they are. As with nf4, without custom_op, whose calls cost more.
_library: Any = torch.library.Library("clotho", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("multiply(Tensor(a!) rows, Tensor whole, int ranks) -> Tensor")
_library.define("gate(Tensor gate_up, int ranks) -> Tensor")
_library.define("gate_back(Tensor to_gated, Tensor gate_up, int ranks) -> Tensor")


def _multiply(rows: torch.Tensor, whole: torch.Tensor, ranks: int) -> torch.Tensor:
    """The last columns of the rows are room for what the adapters make of the others."""
    torch.mm(rows[:, :-ranks], whole[-ranks:, :-ranks].t(), out=rows[:, -ranks:])
    return rows @ whole[:-ranks].t()


def _multiplied(rows: torch.Tensor, whole: torch.Tensor, ranks: int) -> torch.Tensor:
    return rows.new_empty(rows.shape[0], whole.shape[0] - ranks)


def _gated(gate_up: torch.Tensor, ranks: int) -> torch.Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2 + ranks)


def _gated_back(_: torch.Tensor, gate_up: torch.Tensor, ranks: int) -> torch.Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] + ranks)


for _name, _compute, _shape in (
    ("multiply", _multiply, _multiplied),
    ("gate", gating.gate, _gated),
    ("gate_back", gating.gradient, _gated_back),
):
    _library.impl(_name, _compute, "CPU")
    _library.impl(_name, _compute, "CUDA")
    torch.library.register_fake(f"clotho::{_name}", _shape, lib=_library)


class Matrix(NamedTuple):
    whole: torch.Tensor
    ranks: int
    places: tuple[Place, ...]
    bias: torch.Tensor | None

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.clotho.multiply(rows, self.whole, self.ranks)
        return result if self.bias is None else result + self.bias

    def multiply_back(self, slopes: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.clotho.multiply(slopes, self.whole.t(), self.ranks)
        return result

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        return functional.pad(x, (0, self.ranks))

    def to_adapters(self, slope: torch.Tensor, back: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
        """The gradients of A and B of each: each side of the product beside what adapters made of the other."""
        to_down = back[:, -self.ranks :].t() @ rows[:, : -self.ranks]
        to_up = slope.t() @ rows[:, -self.ranks :]
        return [part for place in self.places for part in place.gradients(to_down, to_up)]


class _Multiply(torch.autograd.Function):
    """The matrix has the adapters' values; the parameters themselves only receive their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        ctx.matrix = matrix = Matrix(*rest[: len(Matrix._fields)])
        rows = matrix.padded(x)
        result = matrix.multiply(rows)
        ctx.save_for_backward(rows)
        return result

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        matrix, (rows,), slope = ctx.matrix, ctx.saved_tensors, slopes[0]
        back = matrix.padded(slope)
        to_x = matrix.multiply_back(back)
        return to_x, *[None] * len(matrix), *matrix.to_adapters(slope, back, rows)


class _GatedPair(torch.autograd.Function):
    """The product with gates beside what they gate, gating, and a second product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        size = len(Matrix._fields)
        ctx.matrices = first, second = Matrix(*rest[:size]), Matrix(*rest[size : 2 * size])
        rows = first.padded(x)
        gate_up = first.multiply(rows)
        gated = torch.ops.clotho.gate(gate_up, second.ranks)
        result = second.multiply(gated)
        ctx.save_for_backward(rows, gate_up, gated)
        return result

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (first, second), (rows, gate_up, gated), slope = ctx.matrices, ctx.saved_tensors, slopes[0]
        back = second.padded(slope)
        further = torch.ops.clotho.gate_back(second.multiply_back(back), gate_up, first.ranks)
        to_x = first.multiply_back(further)
        to_first = first.to_adapters(further[:, : -first.ranks], further, rows)
        return to_x, *[None] * 2 * len(first), *to_first, *second.to_adapters(slope, back, gated)


_multiplied_with = in_graph(_Multiply)
_multiplied_with_pair = in_graph(_GatedPair)


def _matrix(linear: FusedLinear) -> Matrix:
    return Matrix(cast(torch.Tensor, linear.whole), linear.rank, places_of(linear), linear.bias)


def _joined(*linears: FusedLinear) -> Joined:
    product = _multiplied_with if len(linears) == 1 else _multiplied_with_pair
    return Joined(linears, [_matrix(linear) for linear in linears], product)


def join(model: Any, weights: PolicyWeights) -> Callable[[], None] | None:
    """Packed rows go through the engine's matrices from now on, if every linear layer has an adapter, and the base 16
    bits or 8. Then this is what has to be called before a step."""
    linears = [each for layer in weights.layers for each in layer.linears]
    if not all(linear.has_all_adapters for linear in linears):
        return None
    layers = base_model(model).model.layers
    if all(isinstance(linear, FusedFp8Linear) for linear in linears):
        return partial(rounded_joint.refresh, _put_in(layers, weights.layers, rounded_joint.RoundedJoint))
    if all(linear.whole is not None for linear in linears):
        _put_in(layers, weights.layers, _joined)
        return weights.refresh
    return None


def _put_in(layers: Sequence[Any], held: Sequence[Layer], joined: Callable[..., Joined]) -> list[Any]:
    joints: list[Any] = []
    for layer, own in zip(layers, held, strict=True):
        layer.joint_qkv, layer.joint_output = joined(own.qkv), joined(own.output)
        layer.joint_mlp = joined(own.gate_up, own.down)
        layer.forward = MethodType(_forward, layer)
        joints += [layer.joint_qkv, layer.joint_output, layer.joint_mlp]
    return joints


def _forward(layer: Any, hidden_states: torch.Tensor, *, varlen: Varlen | None = None, **named: Any) -> Any:
    """What the layer's own modules compute, which still serve all but packed rows and the base by itself."""
    attention = layer.self_attn
    if varlen is None or attention.q_proj.disable_adapters:
        return type(layer).forward(layer, hidden_states, varlen=varlen, **named)
    heads = (*hidden_states.shape[:-1], -1, attention.head_dim)
    parts = layer.joint_qkv(layer.input_layernorm(hidden_states)).view(heads)
    kv_heads = parts.shape[-2] // (attention.num_key_value_groups + 2)
    query, key, value = parts.split([kv_heads * attention.num_key_value_groups, kv_heads, kv_heads], -2)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    query, key = apply_rotary_pos_emb(query, key, *named["position_embeddings"])
    mixed, _ = varlen_attention.attend(attention, query, key, value, None, scaling=attention.scaling, varlen=varlen)
    hidden_states = hidden_states + layer.joint_output(mixed.flatten(-2))
    return hidden_states + layer.joint_mlp(layer.post_attention_layernorm(hidden_states))
