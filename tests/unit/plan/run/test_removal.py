"""After a run is gone: its claim is deleted where it cannot hold a checkpoint."""

from typing import Any

import msgspec
import pytest

from clotho.api.names import TRAINER
from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import TrainingRun
from clotho.plan.model import Delete, ObjectKey
from clotho.plan.run.deletion import plan_removal
from clotho.render.names import claim_name
from unit.plan.run.world import World, running_world

CHECKPOINT = {"step": 5, "path": "/ckpt/5", "time": "2026-01-01T00:00:00Z"}


def status(phase: str, step: int | None = None, checkpoint: dict[str, Any] | None = None) -> TrainingRunStatus:
    progress = None if step is None else {"step": step, "totalSteps": 100, "percent": step}
    return msgspec.convert({"phase": phase, "progress": progress, "checkpoint": checkpoint}, TrainingRunStatus)


def claim_of(world: World) -> ObjectKey:
    return ObjectKey("PersistentVolumeClaim", claim_name(world.run.metadata, TRAINER))


def removed(world: World, run: TrainingRun, *others: TrainingRun) -> list[ObjectKey]:
    actions = plan_removal(run, world.objects, others)
    assert all(isinstance(action, Delete) for action in actions)
    return [action.key for action in actions]


@pytest.mark.parametrize(
    ("last_known", "is_deleted"),
    [
        (status("Pending"), True),
        (status("Starting", step=0), True),
        (status("Failed", step=3), True),
        (status("Running", step=3), False),  # the trainer saves when its pod is terminated
        (status("Running", step=9, checkpoint=CHECKPOINT), False),
        (status("Completed", step=100, checkpoint=CHECKPOINT), False),
    ],
)
def test_claim_without_a_checkpoint_is_deleted(last_known: TrainingRunStatus, is_deleted: bool) -> None:
    world = running_world()
    run = msgspec.structs.replace(world.run, status=last_known)
    assert removed(world, run) == ([claim_of(world)] if is_deleted else [])


def test_claim_that_another_run_names_is_kept() -> None:
    world = running_world()
    run = msgspec.structs.replace(world.run, status=status("Failed"))
    storage = msgspec.structs.replace(run.spec.storage, claim_name=claim_of(world).name)
    other = msgspec.structs.replace(run, spec=msgspec.structs.replace(run.spec, storage=storage))
    assert removed(world, run, other) == []


def test_orphaned_claim_is_kept() -> None:
    world = running_world()
    metadata = msgspec.structs.replace(world.run.metadata, finalizers=("orphan",))
    assert removed(world, msgspec.structs.replace(world.run, metadata=metadata, status=status("Failed"))) == []
