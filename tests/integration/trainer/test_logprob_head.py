"""The closed-form head against TRL's: the same loss, figures and gradients, whatever the rows look like."""

from pathlib import Path

import pytest
import torch

from clotho_contract.settings import Loss
from clotho_trainer.model import fp8
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local.backend import LocalBackend
from clotho_trainer.training.local.logprob_head import LogprobHead
from integration.trainer.tiny import backend, config, groups


def gradients(policy: LocalBackend, has_plain_head: bool) -> tuple[float, dict[str, float], list[torch.Tensor]]:
    trainer = policy._trainer
    trainer.has_plain_head = has_plain_head
    with policy._live.training():
        batch = prepare(groups(3, count=3), policy.rules, policy.version)
        loss = policy._accumulate(batch, policy._parts(batch.rows))
    trainable = [p for p in policy._live.model.parameters() if p.requires_grad]
    found = [p.grad.clone() for p in trainable if p.grad is not None]
    policy._optimizer.zero_grad(set_to_none=True)
    return loss, trainer.take_figures().means, found


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_loss_and_gradients_are_those_of_trl(model: Path, tmp_path: Path, beta: float) -> None:
    policy = backend(config(model, loss=Loss(beta=beta), micro_batch_size=12), tmp_path)
    assert policy._trainer.has_plain_head
    policy.step(prepare(groups(0), policy.rules, 0), 5e-2)
    loss, figures, ours = gradients(policy, has_plain_head=True)
    expected_loss, expected_figures, theirs = gradients(policy, has_plain_head=False)
    assert loss == pytest.approx(expected_loss, abs=1e-6)
    assert figures == pytest.approx(expected_figures, abs=1e-5)
    assert len(ours) == len(theirs) > 0
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)


def test_trained_heads_and_entropy_use_the_plain_computation(model: Path, tmp_path: Path) -> None:
    assert not backend(config(model, rank=0), tmp_path)._trainer.has_plain_head
    assert not backend(config(model, loss=Loss(entropy_coefficient=0.1)), tmp_path)._trainer.has_plain_head


class Head(torch.nn.Module):
    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.lm_head = torch.nn.Linear(hidden, vocabulary, bias=False).requires_grad_(False)


@pytest.mark.parametrize("sharpness", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("in_8_bits", [False, True])
def test_the_gradient_is_that_of_the_exact_head_for_vague_and_for_confident_tokens(
    sharpness: float, *, in_8_bits: bool
) -> None:
    torch.manual_seed(0)
    head = Head(320, 64)
    kind = torch.float32 if in_8_bits else torch.bfloat16
    head.lm_head.weight.data = torch.randn(320, 64).to(kind)
    if in_8_bits:
        fp8._turn_head(head.lm_head)
    targets = torch.randint(320, (500,))
    directed = (head.lm_head.weight[targets].float() + 2 * torch.randn(500, 64)) * sharpness / 64
    found, expected = directed.to(kind).requires_grad_(), directed.to(kind).double().requires_grad_()
    turned = fp8.turned_head(head)
    assert (turned is not None) == in_8_bits
    logprobs, _ = LogprobHead.apply(found, head.lm_head.weight, turned, targets, 0.8)
    wide = (expected @ head.lm_head.weight.double().t() / 0.8).log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)
    (mine,), (theirs,) = (torch.autograd.grad(each.sum(), x) for each, x in ((logprobs, found), (wide, expected)))
    apart = (mine - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp(min=1e-3)
    confident = wide > -0.01
    assert (confident.sum() > 20) == (sharpness > 3), "the cases differ"
    assert apart.max() < (0.06 if in_8_bits else 0.2)
    assert apart.median() < (0.04 if in_8_bits else 0.02)  # bfloat16 rounds the logits themselves


def test_heads_that_are_trained_or_of_odd_sizes_are_not_rounded() -> None:
    odd, trained = Head(321, 64), Head(320, 64)
    trained.lm_head.weight.requires_grad_()
    for head in (odd, trained):
        fp8._turn_head(head.lm_head)
        assert fp8.turned_head(head) is None
