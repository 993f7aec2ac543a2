"""Several ranks that train a tiny policy; each writes what it found to FOLDER/RANK.json. Rank 0 also trains alone, to
compare. They are forks of one process, which imports torch and friends once.

python -m integration.trainer.rank_process SIZE PORT MODEL FOLDER
"""

import hashlib
import json
import multiprocessing
import os
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from clotho_contract.config import RunConfig
from clotho_contract.settings import Loss, WorldModel
from clotho_trainer.failures import TrainerError
from clotho_trainer.training.batch import Batch, Rules, prepare
from clotho_trainer.training.local import team as teams
from clotho_trainer.training.local.backend import LocalBackend
from clotho_trainer.training.local.sharding import whole
from clotho_trainer.training.local.team import Alone
from integration.trainer.tiny import backend, config, groups

RULES = Rules(max_tokens=64)
_FEW = prepare(groups(2, count=1), RULES, 0)
# Two rows leave a third rank without any.
BATCHES = (prepare(groups(1, count=3), RULES, 0), _FEW, Batch(_FEW.rows[:2], {}))
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")


class Watched(Alone):
    """Notes the gradients of each step, summed over all ranks and not yet clipped."""

    def __init__(self, inner: Alone) -> None:
        self._inner = inner
        self.rank, self.size = inner.rank, inner.size
        self.gradients: list[torch.Tensor] = []
        for name in ("lead", "follow", "shares", "announce", "merged", "broadcast", "broadcast_bytes"):
            setattr(self, name, getattr(inner, name))

    def sum_gradients(self, parameters: Any) -> None:
        self._inner.sum_gradients(parameters)
        self.gradients.append(torch.cat([whole(each.grad).flatten() for each in parameters]).clone())


def main(size: int, port: int, model: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run, args=(rank, size, port, model, folder)) for rank in range(size)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    sys.exit(any(each.exitcode for each in ranks))


def run(rank: int, size: int, port: int, model: Path, folder: Path) -> None:
    store = teams.open_store(port) if rank == 0 else teams.reach_store("127.0.0.1", port)
    team = teams.connect(rank, size, store, timeout_seconds=60)
    found: dict[str, Any] = {}
    kinds = [(kind, Loss(type=kind)) for kind in LOSSES]
    for name, loss in [*kinds, ("entropy", Loss(entropy_coefficient=0.1, beta=0.1))]:
        settings = config(model, loss=loss, micro_batch_size=3, world_model=WorldModel(coefficient=0.3))
        found[name] = losses(team, settings, folder)
    found["resumed"] = resumed(team, config(model), folder)
    found["sharded"] = sharded_losses(team, model, folder)
    found["crossed"] = {str(rank): crossed(team, config(model, rank=rank), folder) for rank in (8, 0)}
    found["out_of_memory"] = out_of_memory(team, config(model, micro_batch_size=1), folder)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # gloo's threads outlive their rank


def losses(team: Alone, settings: RunConfig, folder: Path) -> dict[str, Any]:
    together, watched = joined(team, settings, folder), Watched(team)
    together.join(watched)
    is_sharded = settings.sharding != "none"
    if team.rank == 1 and not is_sharded:
        run_out_of_memory(together)
    figures = [step(together, batch) for batch in BATCHES]
    outcome: dict[str, Any] = {
        "weights": digest(together),
        "rows": [len(team.shares(batch.rows)[team.rank]) for batch in BATCHES],
        "repeated": together._rows_a_pass < 3,
        "share": share_of(together),
    }
    if team.rank == 0:
        expected, gradients = alone(structs.replace(settings, sharding="none"), folder)
        pairs = zip(watched.gradients, gradients, strict=True)
        outcome["gradients"] = [float((mine - theirs).norm() / theirs.norm()) for mine, theirs in pairs]
        outcome["loss"] = [abs(mine["loss"] - theirs["loss"]) for mine, theirs in zip(figures, expected, strict=True)]
        outcome["figures"] = sorted(set(expected[0]) ^ set(figures[0]))
    return outcome


@cache
def alone(settings: RunConfig, folder: Path) -> tuple[list[dict[str, float]], list[torch.Tensor]]:
    """The figures and the gradients of one process."""
    policy, watched = joined(Alone(), settings, folder), Watched(Alone())
    policy.join(watched)
    return [policy.step(batch, 1e-3) for batch in BATCHES], watched.gradients


def sharded_losses(team: Alone, model: Path, folder: Path) -> dict[str, Any]:
    """Of adapters and of full weights; with the other ways through the model: no packed rows, a reference, activations
    that are recomputed, a head that is the embedding."""
    recomputed: dict[str, Any] = {"gradient_checkpointing": None}
    cases: list[tuple[str, Path, Loss, dict[str, Any]]] = [
        *((kind, model, Loss(type=kind), {}) for kind in LOSSES),
        ("entropy", model, Loss(entropy_coefficient=0.1, beta=0.1), recomputed),
        ("reference", model, Loss(beta=0.1), recomputed),
        ("tied", tied(model, folder / f"tied-{team.rank}"), Loss(), {}),
    ]
    found = {}
    for name, source, loss, options in cases:
        for rank in (8, 0):
            world_model = WorldModel(coefficient=0.3)
            settings = config(source, loss=loss, rank=rank, micro_batch_size=3, world_model=world_model, **options)
            found[f"{name} {rank}"] = losses(team, structs.replace(settings, sharding="fsdp"), folder)
    return found


def tied(model: Path, copy: Path) -> Path:
    shutil.copytree(model, copy)
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": True}))
    weights = load_file(copy / "model.safetensors")
    save_file({name: each for name, each in weights.items() if name != "lm_head.weight"}, copy / "model.safetensors")
    return copy


def crossed(team: Alone, settings: RunConfig, folder: Path) -> dict[str, Any]:
    """A checkpoint of a sharded policy is resumed by one process, and that one's by a sharded policy."""
    batches = [prepare(groups(seed, count=3), RULES, 0) for seed in (1, 2, 3)]
    sharded = structs.replace(settings, sharding="fsdp")
    before, after = (joined(team, sharded, folder) for _ in range(2))
    before.join(team)
    step(before, batches[0])
    outcome: dict[str, Any] = {}
    if team.rank:
        before.follow_gather()
    else:
        before.gather()
        before.save(folder / "sharded")
        single = joined(Alone(), settings, folder)
        single.restore(folder / "sharded", before.version)
        outcome["restored"] = difference(before, single)
        expected = single.step(batches[1], 1e-3)
        single.gather()
        single.save(folder / "single")
        after.restore(folder / "single", single.version)
    figures = step(before, batches[1])
    after.join(team)
    last = step(after, batches[2])
    if team.rank == 0:
        outcome["norm"] = abs(figures["gradient_norm"] - expected["gradient_norm"])
        outcome["norm_after"] = abs(last["gradient_norm"] - single.step(batches[2], 1e-3)["gradient_norm"])
        outcome["weights_after"] = difference(after, single)
        outcome["files"] = [sorted(each.name for each in (folder / name).iterdir()) for name in ("sharded", "single")]
        for name in ("sharded", "single"):
            shutil.rmtree(folder / name)
    return outcome | {"versions": [before.version, after.version]}


def out_of_memory(team: Alone, settings: RunConfig, folder: Path) -> str:
    """Of all ranks at once: one that waits for another cannot be reached."""
    policy = joined(team, structs.replace(settings, sharding="fsdp"), folder)
    policy.join(team)
    run_out_of_memory(policy)
    try:
        step(policy, BATCHES[0])
    except TrainerError as error:
        return f"{error.reason}: {error.message}"
    return ""


def difference(sharded: LocalBackend, single: LocalBackend) -> float:
    """The largest of any trained parameter."""
    found = dict(single.live.model.named_parameters())
    assert sharded.live.whole
    return max(float((found[name].detach() - value).abs().max()) for name, value in sharded.live.whole.items())


def share_of(policy: LocalBackend) -> float:
    """How much of the model this rank has."""
    parameters = list(policy.live.model.parameters())
    local = sum(each.to_local().numel() if isinstance(each, DTensor) else each.numel() for each in parameters)
    return local / sum(each.numel() for each in parameters)


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
    return backend(seeded, folder / f"rank-{team.rank}", team.rank)


def step(policy: LocalBackend, batch: Batch) -> dict[str, float]:
    if policy._team.rank == 0:
        return policy.step(batch, 1e-3)
    policy.follow()
    return {}


def run_out_of_memory(policy: LocalBackend) -> None:
    """Once, in the second micro-batch of the first step."""
    compute, calls = policy._loss, 0

    def fail_once(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.OutOfMemoryError("for the test")
        return compute(*arguments)

    policy._loss = fail_once  # type: ignore[method-assign]


def digest(policy: LocalBackend) -> str:
    weights = [whole(each.detach()).flatten() for each in policy.live.model.parameters() if each.requires_grad]
    return hashlib.sha256(torch.cat(weights).numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
