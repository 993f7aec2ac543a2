"""Rows side by side, common prompts once: the same log-probabilities and gradients as each row by itself."""

import pytest
import torch

from clotho_trainer.model.live import LiveWeights
from clotho_trainer.training.local import packing
from clotho_trainer.training.local.logprob_head import completion_logprobs
from integration.trainer.fast_policies import ARCHITECTURES, policy

FIRST, SECOND = [5, 6, 7, 8, 9], [7, 7, 30]
ROWS = [(FIRST, [11, 12, 13]), (SECOND, [14]), (FIRST, [15] * 7), (FIRST, [11, 12]), (FIRST[:4], [16, 17])]
WIDTH = max(len(completion) for _, completion in ROWS)


CPU = torch.device("cpu")


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts to the left, completions to the right."""
    longest = max(len(prompt) for prompt, _ in ROWS)
    lines = [[0] * (longest - len(p)) + p + c + [0] * (WIDTH - len(c)) for p, c in ROWS]
    marks = [[0] * (longest - len(p)) + [1] * len(p + c) + [0] * (WIDTH - len(c)) for p, c in ROWS]
    return torch.tensor(lines), torch.tensor(marks)


def weighed(logprobs: torch.Tensor) -> torch.Tensor:
    """A loss in which no two tokens count alike."""
    weights = torch.linspace(0.1, 1.0, logprobs.numel()).view_as(logprobs)
    return (logprobs * weights).sum()


def gradients(live: LiveWeights, loss: torch.Tensor) -> list[torch.Tensor]:
    trained = [parameter for parameter in live.model.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(loss, trained))


def row_by_row(live: LiveWeights) -> torch.Tensor:
    lines = []
    for prompt, completion in ROWS:
        ids = torch.tensor([[*prompt, *completion]])
        logits = live.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        found = logits.gather(-1, torch.tensor(completion)[:, None]).squeeze(-1)
        lines.append(torch.nn.functional.pad(found, (0, WIDTH - len(completion))))
    return torch.stack(lines)


@pytest.mark.parametrize("recomputes", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_rows_equal_rows_by_themselves(architecture: str, recomputes: bool) -> None:
    live = policy(architecture)
    live.model.train()
    expected = row_by_row(live)
    expected_gradients = gradients(live, weighed(expected))
    packing.prepare(live.model)
    if recomputes:
        live.model.enable_input_require_grads()
        live.model.gradient_checkpointing_enable({"use_reentrant": False})
    found, _ = completion_logprobs(live.model, packing.packed(*padded(), WIDTH, CPU), 1.0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(gradients(live, weighed(found)), expected_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_nothing_is_padded_and_a_common_prompt_is_there_once() -> None:
    batch = packing.packed(*padded(), WIDTH, CPU)
    expected = [*FIRST, 11, 12, 13, *SECOND, 14, *[15] * 7, 11, 12, *FIRST[:4], 16, 17]
    assert batch.tokens.tolist() == expected
    assert batch.positions.tolist()[: len(FIRST) + 3] == list(range(8))
    assert batch.varlen.cu_seqlens_q.diff().tolist() == [5, 3, 3, 1, 7, 2, 4, 2]
    assert batch.varlen.cu_seqlens_k.diff().tolist() == [5, 8, 3, 4, 12, 7, 4, 6]
    assert batch.varlen.max_seqlens.tolist() == [7, 12]


def test_a_model_with_packed_attention_still_reads_padded_rows() -> None:
    live = policy("qwen3")
    ids, mask = padded()
    with torch.no_grad():
        expected = live.model(input_ids=ids, attention_mask=mask).logits
        packing.prepare(live.model)
        found = live.model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-5, atol=1e-5)


def test_completions_that_do_not_count_have_no_part() -> None:
    live = policy("qwen3")
    packing.prepare(live.model)
    ids, mask = padded()
    mask[:, -WIDTH:] = 0
    logprobs, entropies = completion_logprobs(live.model, packing.packed(ids, mask, WIDTH, CPU), 1.0)
    assert logprobs.requires_grad
    assert not logprobs.any()
    assert not entropies.any()
