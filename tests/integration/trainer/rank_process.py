"""One of several ranks that train a tiny policy; prints what it found as JSON. Rank 0 also trains alone, to compare.

python -m integration.trainer.rank_process RANK SIZE PORT MODEL FOLDER
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from clotho_contract.config import RunConfig
from clotho_contract.settings import Loss, WorldModel
from clotho_trainer.training.batch import Batch, prepare
from clotho_trainer.training.local import team as teams
from clotho_trainer.training.local.backend import LocalBackend
from clotho_trainer.training.local.team import Alone
from integration.trainer.tiny import backend, config, groups

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")


class Watched(Alone):
    """Notes the gradients of each step, summed over all ranks and not yet clipped."""

    def __init__(self, inner: Alone) -> None:
        self._inner = inner
        self.rank, self.size = inner.rank, inner.size
        self.gradients: list[torch.Tensor] = []
        for name in ("lead", "follow", "share", "merged", "broadcast", "broadcast_bytes"):
            setattr(self, name, getattr(inner, name))

    def sum_gradients(self, parameters: Any) -> None:
        self._inner.sum_gradients(parameters)
        self.gradients.append(torch.cat([each.grad.flatten() for each in parameters]).clone())


def main(rank: int, size: int, port: int, model: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    store = teams.open_store(port) if rank == 0 else teams.reach_store("127.0.0.1", port)
    team = teams.connect(rank, size, store, timeout_seconds=60)
    found: dict[str, Any] = {}
    kinds = [(kind, Loss(type=kind)) for kind in LOSSES]
    for name, loss in [*kinds, ("entropy", Loss(entropy_coefficient=0.1, beta=0.1))]:
        settings = config(model, loss=loss, micro_batch_size=3, world_model=WorldModel(coefficient=0.3))
        found[name] = losses(team, settings, folder)
    found["resumed"] = resumed(team, config(model), folder)
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads outlive their rank


def losses(team: Alone, settings: RunConfig, folder: Path) -> dict[str, Any]:
    together, watched = joined(team, settings, folder), Watched(team)
    together.join(watched)
    if team.rank == 1:
        run_out_of_memory(together)
    batches = [prepare(groups(seed, count=count), together.rules, 0) for seed, count in ((1, 3), (2, 1))]
    batches.append(Batch(batches[1].rows[:2], {}))  # two rows leave a third rank without any
    figures = [step(together, batch) for batch in batches]
    outcome: dict[str, Any] = {
        "weights": digest(together),
        "rows": [len(team.share(batch.rows)) for batch in batches],
        "repeated": together._rows_a_pass < 3,
    }
    if team.rank == 0:
        alone, own = joined(Alone(), settings, folder), Watched(Alone())
        alone.join(own)
        expected = [alone.step(batch, 1e-3) for batch in batches]
        pairs = zip(watched.gradients, own.gradients, strict=True)
        outcome["gradients"] = [float((mine - theirs).norm() / theirs.norm()) for mine, theirs in pairs]
        outcome["loss"] = [abs(mine["loss"] - theirs["loss"]) for mine, theirs in zip(figures, expected, strict=True)]
        outcome["figures"] = sorted(set(expected[0]) ^ set(figures[0]))
    return outcome


def resumed(team: Alone, settings: RunConfig, folder: Path) -> dict[str, Any]:
    """Only rank 0 has the checkpoint; afterwards all go on exactly as if they had never stopped."""
    before = joined(team, settings, folder)
    before.join(team)
    batches = [prepare(groups(seed, count=3), before.rules, 0) for seed in (1, 2)]
    step(before, batches[0])
    after = joined(team, settings, folder)
    if team.rank == 0:
        before.save(folder)
        after.restore(folder, before.version)
    after.join(team)
    versions = before.version, after.version
    for each in (before, after):
        step(each, batches[1])
    return {"weights": digest(after), "expected": digest(before), "versions": versions}


def joined(team: Alone, settings: RunConfig, folder: Path) -> LocalBackend:
    """With adapters of its own until it joins."""
    seeded = structs.replace(settings, training=structs.replace(settings.training, seed=team.rank))
    return backend(seeded, folder / f"rank-{team.rank}")


def step(policy: LocalBackend, batch: Batch) -> dict[str, float]:
    if policy._team.rank == 0:
        return policy.step(batch, 1e-3)
    policy.follow()
    return {}


def run_out_of_memory(policy: LocalBackend) -> None:
    """Once, in the second micro-batch of the first step."""
    compute, calls = policy._part_loss, 0

    def fail_once(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.OutOfMemoryError("for the test")
        return compute(*arguments)

    policy._part_loss = fail_once  # type: ignore[method-assign]


def digest(policy: LocalBackend) -> str:
    weights = [each.detach().flatten() for each in policy.live.model.parameters() if each.requires_grad]
    return hashlib.sha256(torch.cat(weights).numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]))
