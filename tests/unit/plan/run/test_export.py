"""After completion the weights are exported by a pod of their own; whatever becomes of it, the run stays completed."""

from typing import Any

import msgspec
import pytest

from clotho.plan.model import Probe
from clotho.plan.settings import PlanSettings
from clotho_contract.exports import ExportedFile, ExportOutcome, ExportProgress
from clotho_contract.progress import CheckpointInfo
from clotho_contract.termination import Termination, encode
from unit.plan.kstatus import kstatus
from unit.plan.run.world import World, running_world

OUTCOME = ExportOutcome(
    folder="/var/lib/clotho/export", bytes=640, files=(ExportedFile(path="model-q8_0.gguf", bytes=640, sha256="ab"),)
)


def completed_world(export: dict[str, Any] | None = None, **changes: Any) -> World:
    world = running_world(**({} if export is None else {"export": export}), **changes)
    world.make_progress(100, state="finished")
    world.settle()
    world.end_pod(world.named("trainer"), 0, reason="Finished", step=100)
    world.advance(61)
    for _ in range(3):
        world.settle()
        world.terminate()
    assert world.phase == "Completed"
    return world


def ended_world(phase: str, *, checkpoint: bool = True, **changes: Any) -> World:
    """Stopped, or failed at its deadline, perhaps with a checkpoint."""
    world = running_world(deadlineSeconds=600, **changes)
    saved = CheckpointInfo(step=10, path="/var/lib/clotho/checkpoints/step-10") if checkpoint else None
    world.make_progress(12, checkpoint=saved)
    world.settle()
    if phase == "Stopped":
        world.change_spec(stop=True)
    else:
        world.advance(601)
    for _ in range(4):
        world.settle()
        world.terminate()
    world.settle()
    assert world.phase == phase
    return world


@pytest.mark.parametrize("phase", ["Stopped", "Failed"])
def test_a_run_that_ended_early_is_exported_from_its_checkpoint(phase: str) -> None:
    world = ended_world(phase)
    assert world.now_status.export is None
    world.change_spec(export={})
    world.settle()
    assert world.components().count("exporter") == 1
    world.start_pod(world.named("exporter"))
    finish(world)
    assert world.now_status.export is not None
    assert (world.now_status.export.phase, world.phase) == ("Completed", phase)


def test_without_a_checkpoint_there_is_nothing_to_export() -> None:
    world = ended_world("Stopped", checkpoint=False, export={})
    assert world.now_status.export is not None
    assert world.now_status.export.message == "No checkpoint was written, so there is nothing to export."
    assert "exporter" not in world.components()


def test_image_of_the_trainer_stays_in_status() -> None:
    world = ended_world("Stopped")
    assert world.now_status.components is not None
    trainer = world.now_status.components.trainer
    assert trainer is not None
    assert (trainer.pod, trainer.image) == ("", PlanSettings().render.images.trainer)


def finish(world: World) -> None:
    """The exporter's last words."""
    name = world.named("exporter")
    world.end_pod(name, 0, reason="Finished")
    words = encode(Termination(reason="Finished", message="done", export=OUTCOME)).decode()
    world.pods[name]["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = words
    world.reconcile()


def test_nothing_is_exported_by_default() -> None:
    world = completed_world()
    assert "exporter" not in world.components()
    assert world.now_status.export is None


def test_the_exporter_reports_progress_and_files_in_status() -> None:
    world = completed_world({})
    assert world.components().count("exporter") == 1
    assert kstatus(world.run) == "Current", "the run is done, whatever becomes of the export"
    world.start_pod(world.named("exporter"))
    uid = world.pods[world.named("exporter")]["metadata"]["uid"]
    report = ExportProgress(state="writing", artifact="model-q8_0.gguf", done_bytes=160, total_bytes=640)
    world.probes = msgspec.structs.replace(world.probes, exporter=Probe(pod_uid=uid, taken_at=world.now, answer=report))
    world.advance(60)
    world.settle()
    export = world.now_status.export
    assert export is not None
    assert (export.phase, export.percent, export.message) == ("Running", 25, "Writing model-q8_0.gguf.")

    finish(world)
    export = world.now_status.export
    assert export is not None
    assert (export.phase, export.folder, export.files[0].path) == ("Completed", OUTCOME.folder, "model-q8_0.gguf")
    exported = world.now_status.condition("Exported")
    assert exported is not None
    assert exported.status == "True"
    assert world.events.count("Exported") == 1
    assert world.plan().actions == ()


def test_the_exporter_waits_until_the_trainer_releases_the_claim() -> None:
    world = running_world(export={})
    world.make_progress(100, state="finished")
    world.settle()
    assert world.phase == "Completed"
    assert "exporter" not in world.components()
    assert world.now_status.export is not None
    assert "Waiting for the trainer" in world.now_status.export.message


def test_a_failed_export_is_tried_again_and_then_given_up_without_failing_the_run() -> None:
    world = completed_world({}, restarts={"limit": 1, "backoffSeconds": 10})
    for _ in range(2):
        world.start_pod(world.named("exporter"))
        world.end_pod(world.named("exporter"), 1, reason="InternalError", message="no space left on device")
        world.settle()
        world.advance(30)
        world.settle()
    assert world.phase == "Completed"
    export = world.now_status.export
    assert export is not None
    assert export.phase == "Failed"
    assert "no space left on device" in export.message
    assert world.events.count("ExportFailed") == 1
    assert kstatus(world.run) == "Current"


def test_a_deleted_exporter_is_replaced() -> None:
    world = completed_world({})
    world.start_pod(world.named("exporter"))
    world.settle()
    del world.pods[world.named("exporter")]
    world.settle()
    assert "exporter" in world.components()


@pytest.mark.parametrize("first", [None, {"quantization": "f16"}])
def test_an_export_can_be_requested_or_changed_after_completion(first: dict[str, Any] | None) -> None:
    world = completed_world(first)
    if first is not None:
        finish(world)
    world.change_spec(export={"quantization": "q4_0"})
    world.settle()
    export = world.now_status.export
    assert export is not None
    assert export.phase == "Pending"
    live = [name for name, pod in world.pods.items() if "export" in name and pod["status"]["phase"] == "Pending"]
    assert len(live) == 1


def test_a_run_is_not_deleted_while_it_is_exported() -> None:
    world = completed_world({}, ttlSecondsAfterFinished=10)
    world.start_pod(world.named("exporter"))
    world.advance(100)
    world.settle()
    assert not world.is_deleted
    finish(world)
    world.reconcile()
    assert world.is_deleted


def test_an_export_from_ephemeral_storage_is_refused() -> None:
    world = World({"model": {"name": "m"}, "environments": [{"name": "letters"}], "training": {"steps": 1}})
    world.spec |= {"export": {}, "storage": {"ephemeral": True}}
    world.settle()
    assert "storage.ephemeral must be false" in world.now_status.message
