"""The rows of a pass side by side, without padding, and every different prompt once: its keys serve all completions
that begin with it, and the gradients of all of them meet there. Each token sees what it would see in its own row."""

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "clotho_packed"
_HOPPER = 9  # the major capability on which FlashAttention 4 was tried
_LARGEST_HEAD = 128


class Sight(NamedTuple):
    """Who sees whom. A part is a prompt or a completion; its queries see the keys that `keys` lists for it, up to
    their own token."""

    keys: torch.Tensor  # of all parts, one after the other: which tokens
    query_ends: torch.Tensor  # of each part, beginning with 0
    key_ends: torch.Tensor
    copies: torch.Tensor  # the places in `keys` of the first token, then those of the second, and so on
    copy_ends: torch.Tensor  # of each token, beginning with 0: where its own end
    longest: torch.Tensor  # queries and keys of any part; on the host


@dataclass(frozen=True)
class Packed:
    tokens: torch.Tensor
    positions: torch.Tensor
    sight: Sight
    targets: torch.Tensor  # the completions' tokens
    before: torch.Tensor  # for each of them, the token that predicts it
    rows: torch.Tensor  # where each of them came from
    places: torch.Tensor
    shape: tuple[int, int]  # rows, and columns of completions


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """To the device, without waiting for what it still computes."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def packed(ids: torch.Tensor, mask: torch.Tensor, completion_tokens: int, device: torch.device) -> Packed:
    """Of rows with prompts padded on the left and completions, the last columns, padded on the right."""
    host_ids, host_mask = ids.numpy(force=True), mask.numpy(force=True).astype(bool)
    split = ids.shape[1] - completion_tokens
    prompts = [row[seen] for row, seen in zip(host_ids[:, :split], host_mask[:, :split], strict=True)]
    completions = [row[seen] for row, seen in zip(host_ids[:, split:], host_mask[:, split:], strict=True)]
    tokens, positions, keys, before = (list[NDArray[np.int64]]() for _ in range(4))
    queries, seen_keys, total = [0], [0], 0
    starts: dict[bytes, int] = {}

    def add(part: NDArray[np.int64], prefix: NDArray[np.int64]) -> None:
        nonlocal total
        own = np.arange(total, total + len(part))
        tokens.append(part)
        positions.append(np.arange(len(prefix), len(prefix) + len(part)))
        keys.extend((prefix, own))
        total += len(part)
        queries.append(total)
        seen_keys.append(seen_keys[-1] + len(prefix) + len(part))

    nothing = np.arange(0)
    for prompt, completion in zip(prompts, completions, strict=True):
        if prompt.tobytes() not in starts:
            starts[prompt.tobytes()] = total
            add(prompt, nothing)
        start = starts[prompt.tobytes()]
        if len(completion):
            before.append(np.concatenate(([start + len(prompt) - 1], np.arange(total, total + len(completion) - 1))))
            add(completion, np.arange(start, start + len(prompt)))
    rows, places = host_mask[:, split:].nonzero()

    def there(array: NDArray[Any], kind: torch.dtype = torch.int64) -> torch.Tensor:
        return sent(torch.from_numpy(array).to(kind), device)

    longest = [int(np.diff(ends).max()) for ends in (queries, seen_keys)]
    every_key = np.concatenate(keys)
    copies = every_key.argsort(kind="stable")
    sight = Sight(
        keys=there(every_key),
        query_ends=there(np.asarray(queries), torch.int32),
        key_ends=there(np.asarray(seen_keys), torch.int32),
        copies=there(copies),
        copy_ends=there(np.searchsorted(every_key[copies], np.arange(total + 1))),
        longest=torch.tensor(longest),
    )
    return Packed(
        tokens=there(np.concatenate(tokens)),
        positions=there(np.concatenate(positions)),
        sight=sight,
        targets=there(host_ids[:, split:][rows, places]),
        before=there(np.concatenate(before or [nothing])),
        rows=there(rows),
        places=there(places),
        shape=(len(host_ids), completion_tokens),
    )


def hidden_states(core: Any, batch: Packed) -> torch.Tensor:
    """Through the model's own layers; of each token, as the head takes it."""
    positions = batch.positions[None]
    hidden = core.embed_tokens(batch.tokens[None])
    hidden.requires_grad_(torch.is_grad_enabled())  # as before every other layer: one compiled program serves them all
    rotation = core.rotary_emb(hidden, positions)
    expect_any_length(hidden, positions, *rotation, dimension=1)
    expect_any_length(*batch.sight[:-1], dimension=0)
    for layer in core.layers:
        hidden = layer(
            hidden, attention_mask=None, position_ids=positions, position_embeddings=rotation, sight=batch.sight
        )
    result: torch.Tensor = core.norm(hidden)[0]
    return result


def prepare(model: Any) -> None:
    """The model's attention understands packed rows from now on, and padded ones as before."""
    model.config._attn_implementation = ATTENTION


def expect_any_length(*tensors: torch.Tensor, dimension: int) -> None:
    """One compiled program serves all of them."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    sight: Sight | None = None,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    if sight is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **named)
    rows = [part[0].transpose(0, 1) for part in (query, key, value)]
    has_kernels = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    mixed = _fused(rows, sight, scaling) if has_kernels else _plain(rows, sight, scaling)
    return mixed[None], None


def _plain(rows: list[torch.Tensor], sight: Sight, scaling: float) -> torch.Tensor:
    """Part by part: what the fused kernels must equal, and what runs without them."""
    query, key, value = rows[0], rows[1][sight.keys], rows[2][sight.keys]
    parts = [
        torch.split(part, ends.diff().tolist())
        for part, ends in ((query, sight.query_ends), (key, sight.key_ends), (value, sight.key_ends))
    ]
    results = []
    for turned in zip(*parts, strict=True):
        q, k, v = (part.transpose(0, 1) for part in turned)
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=scaling, enable_gqa=len(q) != len(k)
        )
        results.append(mixed.transpose(0, 1))
    return torch.cat(results)


def _fused(rows: list[torch.Tensor], sight: Sight, scaling: float) -> torch.Tensor:
    query, key, value = (part.contiguous() for part in rows)
    result: torch.Tensor = _attend(query, key, value, list(sight), scaling)[0]
    return result


@torch.library.custom_op("clotho::attend", mutates_args=())
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sight: list[torch.Tensor],
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One operation for the compiler, so that lengths stay data; prompts' keys are copied here and nowhere kept."""
    keys, query_ends, key_ends, *_, longest = sight
    most_queries, most_keys = longest.tolist()
    inputs = query, key[keys], value[keys]
    if flash := _flash_attention_4(query.device, query.shape[-1]):
        lengths = _lengths(query_ends, key_ends, most_queries, most_keys)
        out, sizes, *_ = flash._flash_attn_fwd(*inputs, **lengths, softmax_scale=scaling, causal=True, return_lse=True)
        return out, sizes
    ends = query_ends, key_ends, most_queries, most_keys
    out, sizes, *_ = torch.ops.aten._flash_attention_forward(
        *inputs, *ends, 0.0, is_causal=True, return_debug_mask=False, scale=scaling
    )
    return out, sizes


@cache
def _flash_attention_4(device: torch.device, head: int) -> Any:
    """Half as fast again as the kernels that PyTorch has; None where it is not installed or was not tried."""
    if torch.cuda.get_device_capability(device)[0] != _HOPPER or head > _LARGEST_HEAD:
        return None
    warnings.filterwarnings("ignore", "Argument aux_data")  # of its compiler, which nobody can heed
    try:
        from flash_attn.cute import interface  # type: ignore[import-untyped]
    except ImportError:
        return None
    return interface


def _lengths(query_ends: torch.Tensor, key_ends: torch.Tensor, queries: int, keys: int) -> dict[str, Any]:
    """As FlashAttention 4 takes them."""
    return {"cu_seqlens_q": query_ends, "cu_seqlens_k": key_ends, "max_seqlen_q": queries, "max_seqlen_k": keys}


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
    sizes: torch.Tensor,
    sight: list[torch.Tensor],
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from clotho_trainer.training.local import packing_kernels

    keys, query_ends, key_ends, copies, copy_ends, longest = sight
    most_queries, most_keys = longest.tolist()
    inputs, gradient = (query, key[keys], value[keys]), gradient.contiguous()
    if flash := _flash_attention_4(query.device, query.shape[-1]):
        lengths = _lengths(query_ends, key_ends, most_queries, most_keys)
        to_query, *to_copies = flash._flash_attn_bwd(
            *inputs, out, gradient, sizes, **lengths, softmax_scale=scaling, causal=True
        )
    else:
        seed = torch.zeros((), dtype=torch.int64, device=query.device)  # of a dropout that there is not
        ends = query_ends, key_ends, most_queries, most_keys
        to_query, *to_copies = torch.ops.aten._flash_attention_backward(
            gradient, *inputs, out, sizes, *ends, 0.0, True, seed, seed, scale=scaling
        )
    to_key, to_value = (packing_kernels.add_up(each, copies, copy_ends) for each in to_copies)
    return to_query, to_key, to_value


@_attend_backward.register_fake
def _(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, sight, ctx.scaling = inputs
    ctx.save_for_backward(query, key, value, *output, *sight)


def _turn_back(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
    query, key, value, out, sizes, *sight = ctx.saved_tensors
    return *_attend_backward(gradient, query, key, value, out, sizes, sight, ctx.scaling), [None] * len(sight), None


_attend.register_autograd(_turn_back, setup_context=_keep)
AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
