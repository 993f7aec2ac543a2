"""A tiny policy on the CPU, and batches for it."""

import random
from pathlib import Path
from typing import Any

from msgspec import structs

from clotho_contract.config import Endpoints, RunConfig, RunIdentity
from clotho_contract.settings import Checkpoint, Lora, Loss, Model, Training
from clotho_contract.trajectory import ScoredGroup
from clotho_trainer.training.local import backend as local_backend
from clotho_trainer.training.local.backend import LocalBackend


def config(model: Path, *, loss: Loss | None = None, rank: int = 8, **training: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "steps": 10,
        "batch_size": 8,
        "max_tokens": 64,
        "learning_rate": 1e-2,
        "gradient_checkpointing": False,
        "lora": Lora(rank=rank, alpha=16.0),
        "loss": loss or Loss(),
        "checkpoint": Checkpoint(every_steps=2, keep=2),
    }
    return RunConfig(
        run=RunIdentity(name="tiny", namespace="default", id="tiny-1"),
        endpoints=Endpoints(api_server="http://127.0.0.1:1", inference="http://127.0.0.1:1"),
        model=Model(name=str(model), dtype="float32"),
        training=Training(**(fields | training)),
    )


def backend(config: RunConfig, work: Path, rank: int = 0) -> LocalBackend:
    return local_backend.load_backend(config, work, rank)


def groups(seed: int, *, count: int = 2, size: int = 4, logprobs: bool = True) -> list[ScoredGroup]:
    """Ragged random sequences, with an environment's tokens in the middle of some."""
    chooser = random.Random(seed)  # noqa: S311
    made = []
    for _ in range(count):
        prompt = [chooser.randrange(5, 60) for _ in range(chooser.randrange(2, 6))]
        answers = [[chooser.randrange(5, 60) for _ in range(chooser.randrange(3, 9))] for _ in range(size)]
        masks = [[-100] * len(prompt) + answer for answer in answers]
        masks[0][len(prompt) + 1] = -100
        made.append(
            ScoredGroup(
                tokens=[prompt + answer for answer in answers],
                masks=masks,
                scores=[chooser.random() for _ in answers],
                inference_logprobs=[[1.0] * len(prompt) + [-4.0] * len(answer) for answer in answers]
                if logprobs
                else None,
            )
        )
    return made


def with_model(config: RunConfig, **changes: Any) -> RunConfig:
    return structs.replace(config, model=structs.replace(config.model, **changes))
