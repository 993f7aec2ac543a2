"""The contract with TRL: every loss, KL, the world model and micro-batches, in a few real steps on the CPU."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from transformers import AutoModelForCausalLM, PreTrainedModel

from clotho_contract.settings import Loss, WorldModel
from clotho_trainer.failures import TrainerError
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local import grpo
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer.tiny import backend, config, groups

LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]


def take_steps(policy: LocalBackend, count: int, **changes: Any) -> list[dict[str, float]]:
    batches = [prepare(groups(seed, **changes), policy.rules, policy.version) for seed in range(count)]
    return [policy.step(batch, 1e-2) for batch in batches]


def weights(policy: LocalBackend) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy._live.model.parameters() if p.requires_grad])


@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_of_trl_trains(kind: Any, model: Path, tmp_path: Path) -> None:
    policy = backend(config(model, loss=Loss(type=kind)), tmp_path)
    before = weights(policy)
    figures = take_steps(policy, 3)
    assert policy.version == 3
    assert all(torch.isfinite(torch.tensor(list(step.values()))).all() for step in figures)
    assert not torch.equal(before, weights(policy))
    assert {"loss", "gradient_norm", "entropy", "learning_rate"} <= set(figures[0])


@pytest.mark.parametrize("kind", LOSSES)
def test_micro_batches_do_not_change_the_gradient(kind: Any, model: Path, tmp_path: Path) -> None:
    norms = []
    for micro in (8, 2, 3):
        settings = config(model, loss=Loss(type=kind), micro_batch_size=micro)
        norms.append(take_steps(backend(settings, tmp_path), 1)[0]["gradient_norm"])
    assert norms[1:] == pytest.approx([norms[0]] * 2, rel=1e-4)


def test_full_weights_train_too(model: Path, tmp_path: Path) -> None:
    policy = backend(config(model, rank=0), tmp_path)
    before = weights(policy)
    take_steps(policy, 1)
    assert (weights(policy) != before).float().mean() > 0.9


@pytest.mark.parametrize("rank", [8, 0])
def test_kl_is_measured_from_the_initial_policy(rank: int, model: Path, tmp_path: Path) -> None:
    policy = backend(config(model, rank=rank, loss=Loss(beta=0.1)), tmp_path)
    first, *_, last = take_steps(policy, 4)
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    assert last["kl"] > 1e-4


def test_off_policy_samples_are_weighted_by_their_log_probabilities(model: Path, tmp_path: Path) -> None:
    """A sample that the behaviour policy found far likelier than ours falls below the clip range."""
    policy = backend(config(model, loss=Loss(type="dapo")), tmp_path)
    unlikely = [structs.replace(g, inference_logprobs=[[-0.01] * len(t) for t in g.tokens]) for g in groups(0)]
    figures = policy.step(prepare(unlikely, policy.rules, 0), 1e-2)
    assert figures["clip_ratio/low_mean"] > 0.2


@pytest.mark.parametrize(("epsilon_high", "is_clipped"), [(None, True), (0.2, True), (9.0, False)])
def test_epsilon_high_is_the_upper_clip_range(
    epsilon_high: float | None, is_clipped: bool, model: Path, tmp_path: Path
) -> None:
    """Many tokens are likelier under the policy than they were under the behaviour policy."""
    policy = backend(config(model, loss=Loss(type="dapo", epsilon=0.2, epsilon_high=epsilon_high)), tmp_path)
    likelier = [structs.replace(g, inference_logprobs=[[-5.5] * len(t) for t in g.tokens]) for g in groups(0)]
    figures = policy.step(prepare(likelier, policy.rules, 0), 1e-2)
    assert (figures["clip_ratio/high_mean"] > 0.1) is is_clipped


def test_rows_without_log_probabilities_count_as_on_policy(model: Path, tmp_path: Path) -> None:
    figures = take_steps(backend(config(model, loss=Loss(type="dapo")), tmp_path), 1, logprobs=False)[0]
    assert figures["clip_ratio/region_mean"] == 0.0


def test_equal_scores_change_nothing(model: Path, tmp_path: Path) -> None:
    policy = backend(config(model), tmp_path)
    flat = [structs.replace(g, scores=[1.0] * len(g.scores)) for g in groups(0)]
    assert policy.step(prepare(flat, policy.rules, 0), 1e-2)["gradient_norm"] == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize(
    ("loss", "needs_all"),
    [*((Loss(type=kind), False) for kind in LOSSES), (Loss(beta=0.1), True)],  # type: ignore[arg-type]
)
def test_rows_without_an_advantage_are_not_read_where_they_change_nothing(
    loss: Loss, needs_all: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = backend(config(model, loss=loss), tmp_path)
    first, second = groups(0)
    batch = prepare([first, structs.replace(second, scores=[0.3] * len(second.scores))], policy.rules, 0)
    read: list[int] = []
    prepared = grpo.prepared

    def counted(rows: Any, *arguments: Any, **named: Any) -> grpo.Pass:
        read.append(len(rows))
        return prepared(rows, *arguments, **named)

    monkeypatch.setattr(grpo, "prepared", counted)
    found = policy.step(batch, 1e-2)
    assert sum(read) == (len(batch.rows) if needs_all else len(first.tokens))
    monkeypatch.setattr(grpo.GroupTrainer, "needs_all_rows", True)
    expected = backend(config(model, loss=loss), tmp_path).step(batch, 1e-2)
    assert found["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-4)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4, abs=1e-7)


NORMALIZATIONS = ["selected_tokens", "sequence_mean", "seq_mean_token_sum_norm"]


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_the_world_model_learns_what_the_environment_wrote(normalization: Any, model: Path, tmp_path: Path) -> None:
    settings = config(model, world_model=WorldModel(coefficient=1.0, normalization=normalization))
    policy = backend(settings, tmp_path)
    batch = prepare(groups(0), policy.rules, 0)
    losses = [policy.step(batch, 1e-2)["world_model_loss"] for _ in range(8)]
    assert losses[-1] < losses[0] * 0.8


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_micro_batches_do_not_change_the_world_model(normalization: Any, model: Path, tmp_path: Path) -> None:
    seen = []
    for micro in (8, 2, 3):
        echo = WorldModel(coefficient=1.0, normalization=normalization)
        figures = take_steps(backend(config(model, world_model=echo, micro_batch_size=micro), tmp_path), 1)[0]
        seen.append((figures["world_model_loss"], figures["gradient_norm"]))
    assert seen[1:] == [pytest.approx(seen[0], rel=1e-4)] * 2


def test_without_a_coefficient_the_world_model_changes_nothing(model: Path, tmp_path: Path) -> None:
    plain = take_steps(backend(config(model), tmp_path), 3)
    off = take_steps(backend(config(model, world_model=WorldModel(coefficient=0.0)), tmp_path), 3)
    on = take_steps(backend(config(model, world_model=WorldModel(coefficient=0.5)), tmp_path), 1)[0]
    assert [step["loss"] for step in off] == [step["loss"] for step in plain]
    assert on["policy_loss"] == pytest.approx(plain[0]["loss"], rel=1e-5), "the policy's part is as it was"
    assert on["loss"] == pytest.approx(on["policy_loss"] + 0.5 * on["world_model_loss"], rel=1e-5)


def test_gradient_checkpointing_gives_the_same_gradient(model: Path, tmp_path: Path) -> None:
    plain = take_steps(backend(config(model), tmp_path), 1)[0]
    recomputed = take_steps(backend(config(model, gradient_checkpointing=True), tmp_path), 1)[0]
    assert recomputed["gradient_norm"] == pytest.approx(plain["gradient_norm"], rel=1e-4)


def test_a_loss_that_is_no_number_stops_the_run_with_the_weights_intact(model: Path, tmp_path: Path) -> None:
    policy = backend(config(model, loss=Loss(type="dapo")), tmp_path)
    before = weights(policy)
    impossible = [structs.replace(g, inference_logprobs=[[-1e29] * len(t) for t in g.tokens]) for g in groups(0)]
    with pytest.raises(TrainerError, match="the weights are as they were") as caught:
        policy.step(prepare(impossible, policy.rules, 0), 1e-2)
    assert caught.value.reason == "NonFiniteLoss"
    assert torch.equal(before, weights(policy))
    assert policy.version == 0


def test_policies_of_one_process_are_made_one_after_the_other(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate's state and Transformers' patches belong to the process: two policies made at once break both."""
    lock, most = threading.Lock(), []
    ties_weights = PreTrainedModel.tie_weights
    from_pretrained = AutoModelForCausalLM.from_pretrained

    def slowly(*arguments: Any, **options: Any) -> Any:
        most.append(lock.acquire(blocking=False))
        time.sleep(0.2)
        loaded = from_pretrained(*arguments, **options)
        lock.release()
        return loaded

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", slowly)

    class Watched(grpo.GroupTrainer):
        def __init__(self, **arguments: Any) -> None:
            most.append(lock.acquire(blocking=False))
            time.sleep(0.2)
            super().__init__(**arguments)
            lock.release()

    monkeypatch.setattr(grpo, "GroupTrainer", Watched)
    with ThreadPoolExecutor(2) as threads:
        policies = list(threads.map(lambda part: backend(config(model), tmp_path / part), ("a", "b")))
    assert most == [True] * 4
    assert PreTrainedModel.tie_weights is ties_weights
    assert {policy.version for policy in policies} == {0}
