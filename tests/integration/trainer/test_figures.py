"""TRL's figures: the same that TRL reads, but read once a step, so that the GPU does not wait in every pass."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch.utils._python_dispatch import TorchDispatchMode

from clotho_contract.settings import Loss, WorldModel
from clotho_trainer.training.batch import Batch, blank, prepare
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer.tiny import backend, config, groups

LOSSES = [
    *(Loss(type=kind) for kind in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")),
    Loss(type="dapo", beta=0.1),
    Loss(type="grpo", importance_sampling="sequence"),
]
WITH_ENTROPY = Loss(type="dapo", entropy_coefficient=0.01)  # its rows are padded, and Transformers looks at their masks


def name_of(loss: Loss) -> str:
    return f"{loss.type}-{loss.importance_sampling}-{loss.beta}-{loss.entropy_coefficient}"


def clipped_batch(policy: LocalBackend) -> Batch:
    """Tokens beyond both ends of the clip range, and a row without trained tokens."""
    ends = (-0.01, -9.0)
    scored = [
        structs.replace(each, inference_logprobs=[[ends[row % 2]] * len(row_) for row, row_ in enumerate(each.tokens)])
        for each in groups(0)
    ]
    batch = prepare(scored, policy.rules, policy.version)
    return replace(batch, rows=(*batch.rows, blank(batch.rows[0])))


@pytest.mark.parametrize("loss", [*LOSSES, WITH_ENTROPY], ids=name_of)
def test_figures_are_those_that_trl_reads(loss: Loss, model: Path, tmp_path: Path) -> None:
    found, expected = (backend(config(model, loss=loss, micro_batch_size=3), tmp_path) for _ in range(2))
    accelerator = expected._trainer.accelerator
    del accelerator.reduce, accelerator.gather, accelerator.gather_for_metrics  # what accelerate itself does
    batch = clipped_batch(found)
    assert found.step(batch, 1e-2) == pytest.approx(expected.step(batch, 1e-2), rel=1e-5, abs=1e-7, nan_ok=True)


class Reads(TorchDispatchMode):
    """How often the host waits for a number that the device computes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)
        chooses = func is torch.ops.aten.index.Tensor and any(
            each.dtype == torch.bool for each in args[1] if each is not None
        )
        self.count += chooses or func in reads
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
def test_more_passes_do_not_wait_for_the_device_more_often(loss: Loss, model: Path, tmp_path: Path) -> None:
    counts = []
    for micro in (9, 3, 1):
        echo = WorldModel(coefficient=0.1)
        policy = backend(config(model, loss=loss, world_model=echo, micro_batch_size=micro), tmp_path)
        batch = clipped_batch(policy)
        with Reads() as reads:
            policy.step(batch, 1e-2)
        counts.append(reads.count)
    assert counts == [counts[0]] * 3
    assert counts[0] < 10
