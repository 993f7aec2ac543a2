"""The rows of a pass side by side, without padding, and every different prompt once: its keys serve all completions
that begin with it, and the gradients of all of them meet there. Each token sees what it would see in its own row."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clotho_trainer.training.local import varlen_attention
from clotho_trainer.training.local.varlen_attention import Varlen


@dataclass(frozen=True)
class Packed:
    tokens: torch.Tensor
    positions: torch.Tensor
    varlen: Varlen
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

    max_seqlens = [int(np.diff(ends).max()) for ends in (queries, seen_keys)]
    every_key = np.concatenate(keys)
    copies = every_key.argsort(kind="stable")
    varlen = Varlen(
        keys=there(every_key),
        cu_seqlens_q=there(np.asarray(queries), torch.int32),
        cu_seqlens_k=there(np.asarray(seen_keys), torch.int32),
        copies=there(copies),
        cu_copies=there(np.searchsorted(every_key[copies], np.arange(total + 1))),
        max_seqlens=torch.tensor(max_seqlens),
    )
    return Packed(
        tokens=there(np.concatenate(tokens)),
        positions=there(np.concatenate(positions)),
        varlen=varlen,
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
    expect_any_length(*batch.varlen[:-1], dimension=0)
    for layer in core.layers:
        hidden = layer(
            hidden, attention_mask=None, position_ids=positions, position_embeddings=rotation, varlen=batch.varlen
        )
    result: torch.Tensor = core.norm(hidden)[0]
    return result


def prepare(model: Any) -> None:
    """The model's attention understands packed rows from now on, and padded ones as before."""
    model.config._attn_implementation = varlen_attention.NAME


def expect_any_length(*tensors: torch.Tensor, dimension: int) -> None:
    """One compiled program serves all of them."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)
