"""The closed-form head against TRL's: the same loss, figures and gradients, whatever the rows look like."""

from pathlib import Path

import pytest
import torch

from clotho_contract.settings import Loss
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local.backend import LocalBackend
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
