"""Attention of packed rows: sequences of various lengths side by side, of which some share the keys of a prompt."""

import warnings
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "clotho_packed"  # by which models find it
_HOPPER = 9  # the major capability on which FlashAttention 4 was tried
_LARGEST_HEAD = 128


class Varlen(NamedTuple):
    """Which tokens attend to which. A part is a prompt or a completion; its queries attend to the keys listed in `keys`
    for it, up to their own token."""

    keys: torch.Tensor  # of all parts, one after the other: which tokens
    cu_seqlens_q: torch.Tensor  # where the queries of each part end, beginning with 0
    cu_seqlens_k: torch.Tensor  # where its keys end in `keys`
    copies: torch.Tensor  # the places in `keys` of the first token, then those of the second, and so on
    cu_copies: torch.Tensor  # where those of each token end, beginning with 0
    max_seqlens: torch.Tensor  # queries and keys of any part; on the host


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    varlen: Varlen | None = None,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    if varlen is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **named)
    rows = [part[0].transpose(0, 1) for part in (query, key, value)]
    has_kernels = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    mixed = _fused(rows, varlen, scaling) if has_kernels else _plain(rows, varlen, scaling)
    return mixed[None], None


def _plain(rows: list[torch.Tensor], varlen: Varlen, scaling: float) -> torch.Tensor:
    """Part by part: what the fused kernels must equal, and what runs without them."""
    query, key, value = rows[0], rows[1][varlen.keys], rows[2][varlen.keys]
    parts = [
        torch.split(part, ends.diff().tolist())
        for part, ends in ((query, varlen.cu_seqlens_q), (key, varlen.cu_seqlens_k), (value, varlen.cu_seqlens_k))
    ]
    results = []
    for part in zip(*parts, strict=True):
        q, k, v = (each.transpose(0, 1) for each in part)
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=scaling, enable_gqa=len(q) != len(k)
        )
        results.append(mixed.transpose(0, 1))
    return torch.cat(results)


def _fused(rows: list[torch.Tensor], varlen: Varlen, scaling: float) -> torch.Tensor:
    query, key, value = (part.contiguous() for part in rows)
    result: torch.Tensor = _attend(query, key, value, list(varlen), scaling)[0]
    return result


@torch.library.custom_op("clotho::attend", mutates_args=())
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    varlen: list[torch.Tensor],
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One operation for the compiler, so that lengths stay data; prompts' keys are copied here and nowhere kept."""
    keys, cu_seqlens_q, cu_seqlens_k, *_, max_seqlens = varlen
    most_queries, most_keys = max_seqlens.tolist()
    inputs = query, key[keys], value[keys]
    if flash := _flash_attention_4(query.device, query.shape[-1]):
        lengths = _lengths(cu_seqlens_q, cu_seqlens_k, most_queries, most_keys)
        out, lse, *_ = flash._flash_attn_fwd(*inputs, **lengths, softmax_scale=scaling, causal=True, return_lse=True)
        return out, lse
    ends = cu_seqlens_q, cu_seqlens_k, most_queries, most_keys
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        *inputs, *ends, 0.0, is_causal=True, return_debug_mask=False, scale=scaling
    )
    return out, lse


@cache
def _flash_attention_4(device: torch.device, head: int) -> Any:
    """Half as fast again as the kernels that PyTorch has; None where it is not installed or was not tried."""
    if torch.cuda.get_device_capability(device)[0] != _HOPPER or head > _LARGEST_HEAD:
        return None
    warnings.filterwarnings("ignore", "Argument aux_data")  # from inside its compiler: callers cannot avoid it
    try:
        from flash_attn.cute import interface  # type: ignore[import-untyped]
    except ImportError:
        return None
    return interface


def _lengths(cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, queries: int, keys: int) -> dict[str, Any]:
    """As FlashAttention 4 takes them."""
    return {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "max_seqlen_q": queries, "max_seqlen_k": keys}


@_attend.register_fake
def _(query: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)


@torch.library.custom_op("clotho::attend_backward", mutates_args=())
def _attend_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    varlen: list[torch.Tensor],
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from clotho_trainer.training.local import packing_kernels

    keys, cu_seqlens_q, cu_seqlens_k, copies, cu_copies, max_seqlens = varlen
    most_queries, most_keys = max_seqlens.tolist()
    inputs, gradient = (query, key[keys], value[keys]), gradient.contiguous()
    if flash := _flash_attention_4(query.device, query.shape[-1]):
        lengths = _lengths(cu_seqlens_q, cu_seqlens_k, most_queries, most_keys)
        to_query, *to_copies = flash._flash_attn_bwd(
            *inputs, out, gradient, lse, **lengths, softmax_scale=scaling, causal=True
        )
    else:
        seed = torch.zeros((), dtype=torch.int64, device=query.device)  # unused: there is no dropout
        ends = cu_seqlens_q, cu_seqlens_k, most_queries, most_keys
        to_query, *to_copies = torch.ops.aten._flash_attention_backward(
            gradient, *inputs, out, lse, *ends, 0.0, True, seed, seed, scale=scaling
        )
    to_key, to_value = (packing_kernels.add_up(each, copies, cu_copies) for each in to_copies)
    return to_query, to_key, to_value


@_attend_backward.register_fake
def _(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, varlen, ctx.scaling = inputs
    ctx.save_for_backward(query, key, value, *output, *varlen)


def _backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
    query, key, value, out, lse, *varlen = ctx.saved_tensors
    return *_attend_backward(gradient, query, key, value, out, lse, varlen, ctx.scaling), [None] * len(varlen), None


_attend.register_autograd(_backward, setup_context=_save)
AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
