"""Kueue in the life of a run: queued, admitted, evicted, released. The test plays Kueue."""

from typing import Any

import msgspec
import pytest

from clotho.api.names import PRIORITY_LABEL, QUEUE_LABEL
from clotho.plan.model import Action, Apply, Create, Delete
from clotho.plan.shapes import Condition
from clotho.plan.workloads import (
    Admission,
    Flavour,
    KueueSeen,
    PodSetAssignment,
    Workload,
    WorkloadStatus,
)
from clotho_contract.progress import CheckpointInfo
from unit.plan.run.world import World, minimal_spec

GPU_NODES = Flavour(node_labels={"pool": "h200"}, tolerations=({"key": "gpu", "operator": "Exists"},))
SAVED = CheckpointInfo(step=40, path="/var/lib/clotho/checkpoints/40")


class QueuedWorld(World):
    def __init__(self, **changes: Any) -> None:
        super().__init__(minimal_spec(**changes))
        self.labels = {QUEUE_LABEL: "team"}
        self.kueue = KueueSeen(flavours={"gpu": GPU_NODES})

    @property
    def workload(self) -> Workload | None:
        assert self.kueue is not None
        return self.kueue.workload

    def decide(self, *conditions: tuple[str, str, str], spec_active: bool = True) -> None:
        """What Kueue writes: type, status and message of conditions; the others stay."""
        assert self.kueue is not None
        assert self.workload is not None
        self.version += 1
        new = tuple(Condition(type=kind, status=truth, message=words) for kind, truth, words in conditions)
        kept = tuple(c for c in self.workload.status.conditions if c.type not in {each.type for each in new})
        assigned = tuple(
            PodSetAssignment(name=name, flavors={"cpu": "gpu"})
            for name in ("api-server", "trainer", "inference", "env-letters")
        )
        status = WorkloadStatus(conditions=(*kept, *new), admission=Admission(pod_set_assignments=assigned))
        metadata = msgspec.structs.replace(self.workload.metadata, resource_version=str(self.version))
        spec = msgspec.structs.replace(self.workload.spec, active=spec_active)
        changed = msgspec.structs.replace(self.workload, metadata=metadata, spec=spec, status=status)
        self.kueue = msgspec.structs.replace(self.kueue, workload=changed)

    def admit(self) -> None:
        self.decide(("QuotaReserved", "True", "Quota reserved"), ("Admitted", "True", "The workload is admitted"))

    def evict(self, why: str = "Preempted by another") -> None:
        self.decide(("Evicted", "True", why))

    def stop(self) -> list[str]:
        """Every pod ends as it is asked to; in which order."""
        order: list[str] = []
        for _ in range(4):
            self.settle()
            gone = [pod for pod in self.pods.values() if "deletionTimestamp" in pod["metadata"]]
            order += sorted({pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in gone})
            self.terminate()
        self.settle()
        return order


def running(**changes: Any) -> QueuedWorld:
    world = QueuedWorld(**changes)
    world.settle()
    world.admit()
    world.settle()
    world.start_all()
    world.settle()
    assert world.phase == "Running"
    return world


def created(actions: tuple[Action, ...]) -> dict[str, Any]:
    (only,) = actions
    assert isinstance(only, Create)
    return only.manifest


def uid(world: QueuedWorld) -> str:
    assert world.workload is not None
    return world.workload.metadata.uid


def test_a_new_run_is_one_workload_and_nothing_else() -> None:
    world = QueuedWorld()
    manifest = created(world.reconcile().actions)
    spec = manifest["spec"]
    assert [(each["name"], each["count"]) for each in spec["podSets"]] == [
        ("api-server", 1),
        ("trainer", 1),
        ("env-letters", 2),
    ]
    (container,) = spec["podSets"][1]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"nvidia.com/gpu": 1, "cpu": "2", "memory": "16Gi"}
    assert set(container) == {"name", "image", "resources"}
    assert (spec["queueName"], spec["active"], "priority" in spec) == ("team", True, False)
    assert manifest["metadata"]["ownerReferences"][0]["kind"] == "TrainingRun"
    world.settle()
    assert (world.pods, world.objects) == ({}, {})
    assert (world.phase, world.now_status.is_queued) == ("Pending", True)
    assert world.now_status.message == "Queued in LocalQueue team."


@pytest.mark.parametrize(
    ("conditions", "is_active", "words"),
    [
        ([("QuotaReserved", "False", "couldn't assign flavors to pod set trainer")], True, "couldn't assign flavors"),
        (
            [("QuotaReserved", "True", "Quota reserved in cq"), ("Admitted", "False", "The check prov is pending")],
            True,
            "The check prov is pending.",
        ),
        ([("QuotaReserved", "False", "old"), ("Evicted", "True", "The workload is deactivated")], False, "deactivated"),
    ],
)
def test_what_a_queued_run_waits_for_is_in_kueues_words(
    conditions: list[tuple[str, str, str]], is_active: bool, words: str
) -> None:
    world = QueuedWorld()
    world.settle()
    before = uid(world)
    world.decide(*conditions, spec_active=is_active)
    world.settle()
    assert world.now_status.message.startswith("Queued in LocalQueue team: ")
    assert words in world.now_status.message
    assert (world.pods, uid(world)) == ({}, before)


def test_admitted_pods_go_where_the_flavours_are_and_carry_no_label_of_kueue() -> None:
    world = QueuedWorld()
    world.settle()
    world.admit()
    world.settle()
    assert world.components() == ["api-server", "environment", "environment", "trainer"]
    for pod in world.pods.values():
        assert pod["spec"]["nodeSelector"] == {"pool": "h200"}
        assert pod["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
        assert not any("kueue" in label for label in pod["metadata"]["labels"])


def test_an_evicted_run_stops_in_order_and_is_queued_again_with_its_checkpoint() -> None:
    world = running(deadlineSeconds=3600)
    world.make_progress(41, checkpoint=SAVED)
    world.settle()
    before = uid(world)
    world.evict()
    world.reconcile()
    assert (world.phase, world.events[-2:]) == ("Stopping", ["Evicted", "Stopping"])
    assert world.now_status.message.startswith("Evicted by Kueue: Preempted by another. Stopping: ")
    assert world.stop() == ["environment", "trainer", "api-server"]
    assert (world.phase, world.now_status.is_queued, world.now_status.restarts) == ("Pending", True, 0)
    assert world.now_status.checkpoint == SAVED
    assert world.now_status.start_time is None, "time in the queue does not count against the deadline"
    assert uid(world) != before, "the quota is given back"

    world.advance(7200)
    world.settle()
    world.admit()
    world.settle()
    world.start_all()
    world.settle()
    assert (world.phase, world.now_status.attempt, world.now_status.restarts) == ("Running", 2, 0)


@pytest.mark.parametrize("writes", range(4))
def test_a_run_is_queued_again_whichever_write_the_operator_is_killed_at(writes: int) -> None:
    world = running()
    world.evict()
    for _ in range(4):
        world.carry_out(world.plan(), writes)
        world.reconcile()
        world.terminate()
    world.carry_out(world.plan(), writes)
    world.settle()
    assert world.now_status.is_queued
    assert world.workload is not None
    assert not world.workload.holds_quota


def test_quota_is_held_until_the_last_pod_is_gone() -> None:
    world = running()
    before = uid(world)
    world.evict()
    for _ in range(2):
        world.settle()
        world.terminate()
    world.settle()
    assert world.components() == ["api-server"]
    assert uid(world) == before


def test_a_crash_keeps_the_workload() -> None:
    world = running()
    before = uid(world)
    world.end_pod(world.named("trainer"))
    world.settle()
    world.advance(60)
    world.settle()
    world.start_all()
    world.settle()
    assert (world.phase, world.now_status.restarts) == ("Running", 1)
    assert uid(world) == before


@pytest.mark.parametrize("ask", ["stop", "suspend"])
def test_a_run_that_ends_or_rests_gives_its_quota_back(ask: str) -> None:
    world = running()
    world.change_spec(**{ask: True})
    world.settle()
    assert world.workload is not None
    world.stop()
    assert world.workload is None
    assert world.phase in ("Stopped", "Suspended")


def test_a_completed_run_gives_its_quota_back_once_its_pods_have_ended() -> None:
    world = running()
    world.make_progress(100, "finished")
    world.settle()
    assert world.phase == "Completed"
    assert world.workload is not None
    for name in list(world.pods):
        world.end_pod(name, 0)
    world.settle()
    assert world.workload is None
    assert world.pods, "ended pods stay for their logs"


def test_a_suspended_run_is_queued_when_it_is_resumed() -> None:
    world = running()
    world.change_spec(suspend=True)
    world.stop()
    world.change_spec(suspend=False)
    world.settle()
    assert world.now_status.is_queued
    assert world.workload is not None


def test_pods_without_a_workload_are_stopped() -> None:
    world = running()
    assert world.kueue is not None
    world.kueue = msgspec.structs.replace(world.kueue, workload=None)
    world.reconcile()
    assert world.now_status.message.startswith("The run has no quota from Kueue. Stopping: ")
    world.stop()
    assert world.now_status.is_queued


@pytest.mark.parametrize(
    ("absence", "words"), [("NotInstalled", "Install Kueue, or remove the label."), ("Forbidden", "Set rbac.kueue")]
)
def test_without_kueue_a_run_waits_and_starts_nothing(absence: Any, words: str) -> None:
    world = QueuedWorld()
    world.kueue = KueueSeen(absence=absence)
    planned = world.reconcile()
    assert planned.actions == ()
    assert words in world.now_status.message
    reconciling = world.now_status.condition("Reconciling")
    assert reconciling is not None
    assert reconciling.reason == "WaitingForKueue"
    assert planned.wake_at is not None
    world.kueue = KueueSeen()
    world.settle()
    assert world.workload is not None


def test_a_running_run_continues_when_kueue_is_removed() -> None:
    world = running()
    world.kueue = KueueSeen(absence="NotInstalled")
    world.settle()
    assert world.phase == "Running"


def test_a_deactivated_run_stays_so_until_somebody_activates_its_workload() -> None:
    world = running()
    world.decide(("Evicted", "True", "The workload is deactivated"), spec_active=False)
    world.stop()
    assert world.workload is not None
    assert not world.workload.spec.active
    before = uid(world)
    world.decide(("Evicted", "True", "The workload is deactivated"), spec_active=False)
    world.settle()
    assert uid(world) == before
    assert "deactivated" in world.now_status.message


def test_a_change_while_queued_makes_another_workload_and_a_change_after_admission_none() -> None:
    world = QueuedWorld()
    world.settle()
    first = uid(world)
    world.change_spec(environments=[{"name": "letters", "replicas": 3, "config": {"group_size": 8}}])
    world.settle()
    second = uid(world)
    assert second != first
    world.admit()
    world.settle()
    world.start_all()
    world.settle()
    world.change_spec(environments=[{"name": "letters", "replicas": 5, "config": {"group_size": 8}}])
    world.settle()
    assert world.components().count("environment") == 3, "no pods beyond the quota"
    assert uid(world) == second
    world.change_spec(environments=[{"name": "letters", "replicas": 1, "config": {"group_size": 8}}])
    world.settle()
    world.terminate()
    assert world.components().count("environment") == 1
    assert world.phase == "Running"


def test_a_change_after_admission_and_before_the_trainer_starts_is_queued_again() -> None:
    world = QueuedWorld()
    world.settle()
    world.admit()
    first = uid(world)
    world.change_spec(trainer={"gpus": 8})
    world.reconcile()
    assert (uid(world) != first, world.pods) == (True, {})
    world.settle()
    assert world.now_status.is_queued


def test_inference_replicas_have_quota_and_are_not_scaled_beyond_it() -> None:
    world = running(inference={"replicas": 2})
    assert world.components().count("inference") == 2
    world.change_spec(inference={"replicas": 3})
    world.settle()
    assert world.components().count("inference") == 2


def test_autoscaling_has_quota_for_its_maximum() -> None:
    scaled = {"name": "letters", "replicas": 2, "autoscaling": {"max": 6}, "config": {"group_size": 8}}
    manifest = created(QueuedWorld(environments=[scaled]).reconcile().actions)
    assert manifest["spec"]["podSets"][-1]["count"] == 6


def test_the_priority_is_that_of_the_class() -> None:
    world = QueuedWorld()
    world.labels[PRIORITY_LABEL] = "urgent"
    world.settle()
    assert "WorkloadPriorityClass urgent" in world.now_status.message
    assert world.workload is None
    world.kueue = KueueSeen(priority=1000)
    spec = created(world.reconcile().actions)["spec"]
    assert (spec["priority"], spec["priorityClassRef"]["name"]) == (1000, "urgent")


def test_readiness_is_reported_when_it_changes() -> None:
    def reported(world: QueuedWorld) -> list[tuple[str, str]]:
        applied = [action for action in world.reconcile().actions if isinstance(action, Apply)]
        found = [each.manifest["status"]["conditions"][0] for each in applied if each.key.kind == "Workload"]
        return [(condition["status"], condition["reason"]) for condition in found]

    world = QueuedWorld()
    world.settle()
    world.admit()
    world.settle()
    world.start_all()
    assert reported(world) == [("True", "Started")]
    assert reported(world) == []
    world.end_pod(world.named("trainer"))
    assert reported(world) == [("False", "WaitForRecovery")]
    world.advance(60)
    world.settle()
    world.start_all()
    assert reported(world) == [("True", "Recovered")]


def test_a_run_whose_label_is_removed_continues_without_kueue() -> None:
    world = running()
    world.labels = {}
    world.settle()
    assert world.workload is None
    assert (world.phase, len(world.pods)) == ("Running", 4)


def test_environments_beyond_ten_pod_sets_share_one_with_the_largest_requests() -> None:
    def environment(number: int) -> dict[str, Any]:
        asked = {"cpu": f"{number}00m", "memory": "1Gi"}
        template = {"spec": {"containers": [{"name": "main", "resources": {"requests": asked}}]}}
        return {"name": f"e{number}", "replicas": number, "config": {"group_size": 8}, "template": template}

    world = QueuedWorld(environments=[environment(number) for number in range(1, 13)])
    pod_sets = created(world.reconcile().actions)["spec"]["podSets"]
    assert [each["name"] for each in pod_sets] == [
        "api-server",
        "trainer",
        *(f"env-e{number}" for number in range(1, 8)),
        "environments",
    ]
    assert pod_sets[-1]["count"] == 8 + 9 + 10 + 11 + 12
    (container,) = pod_sets[-1]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "1.200", "memory": "1073741824"}


def test_a_run_without_the_label_is_not_touched() -> None:
    world = QueuedWorld()
    world.labels, world.kueue = {}, None
    world.settle()
    assert len(world.pods) == 4
    assert not any(isinstance(action, Delete) for action in world.plan().actions)
