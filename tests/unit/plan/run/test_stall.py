"""A stall is detected, explained, and, where asked for, ended."""

from typing import Any

import msgspec
import pytest

from clotho.api.status import ComponentStatus
from clotho.plan.model import STALLED, Probe, QueueStatus
from unit.plan.kstatus import kstatus
from unit.plan.run.world import World, running_world

STALL = {"stall": {"afterSeconds": 600}}
RESTART = {"stall": {"afterSeconds": 600, "action": "Restart"}}


def probe(world: World, **answers: Any) -> None:
    """Give each asked pod an answer; a string is the reason why there was none."""
    uids = {
        "api_server": world.named("api-server"),
        "trainer": world.named("trainer"),
        "inference": world.named("trainer"),
    }
    probes = {
        target: Probe(
            pod_uid=world.pods[uids[target]]["metadata"]["uid"],
            taken_at=world.now,
            answer=None if isinstance(answer, str) else answer,
            problem=answer if isinstance(answer, str) else "",
        )
        for target, answer in answers.items()
    }
    world.probes = msgspec.structs.replace(world.probes, **probes)


@pytest.mark.parametrize(
    ("answers", "cause", "words"),
    [
        ({"api_server": "connection refused"}, "APIServerNotAnswering", "does not answer (connection refused)"),
        ({"trainer": "timed out"}, "TrainerHung", "the trainer does not answer"),
        ({"inference": "timed out"}, "InferenceNotAnswering", "the inference server does not answer"),
        ({"api_server": QueueStatus(batches_ready=2)}, "TrainerHung", "2 complete batches wait"),
        (
            {"api_server": QueueStatus(storage_problem="the API server's volume is full")},
            "APIServerVolumeFull",
            "the API server's volume is full",
        ),
        (
            {"api_server": QueueStatus(is_full=True, queue_groups=9)},
            "APIServerFull",
            "9 groups that do not make a batch",
        ),
        (
            {"api_server": QueueStatus(environments_connected=1)},
            "EnvironmentsNotProducing",
            "not producing (1 connected)",
        ),
        ({}, "Unknown", "has not been asked"),
    ],
)
def test_the_cause_of_a_stall_is_in_status(answers: dict[str, Any], cause: str, words: str) -> None:
    world = running_world(**STALL)
    world.make_progress(5)
    world.settle()
    probe(world, **answers)
    world.advance(601)
    world.settle()
    status = world.now_status
    assert status.stall
    assert (status.phase, status.stall.cause) == ("Running", cause)
    assert words in status.message
    assert kstatus(world.run) == "Failed"
    assert world.events.count(STALLED) == 1


def test_the_next_step_ends_it_at_once() -> None:
    world = running_world(**STALL)
    world.make_progress(5)
    world.advance(601)
    world.settle()
    assert world.now_status.stall
    world.make_progress(6)
    world.reconcile()
    assert world.now_status.stall is None
    assert kstatus(world.run) == "Current"


def test_a_stall_is_detected_exactly_when_due() -> None:
    world = running_world(**STALL)
    world.advance(590)
    world.settle()
    assert world.now_status.stall is None
    wake_at = world.plan().wake_at
    assert wake_at is not None
    world.now = wake_at
    world.settle()
    assert world.now_status.stall


def test_a_start_that_hangs_is_a_stall_of_the_one_that_is_not_ready() -> None:
    world = World(running_world(**STALL).spec)
    world.settle()
    world.start_all()
    world.start_pod(world.named("trainer"), ready=False)
    world.settle()
    world.advance(601)
    world.settle()
    assert world.now_status.stall
    assert (world.phase, world.now_status.stall.cause) == ("Starting", "TrainerNotReady")


def test_environments_that_wait_inside_for_ever_are_a_stall_too() -> None:
    world = World(running_world(**STALL).spec)
    world.settle()
    for component in ("api-server", "trainer"):
        world.start_pod(world.named(component))
    for index in range(2):
        waiting = {"name": "wait", "state": {"running": {}}}
        world.pods[world.named("environment", index)]["status"] = {"initContainerStatuses": [waiting]}
    world.advance(601)
    world.settle()
    assert world.now_status.stall
    assert world.now_status.stall.cause == "EnvironmentsNotReady"


def test_a_final_checkpoint_that_takes_long_is_not_a_stall() -> None:
    world = running_world(**RESTART)
    world.make_progress(100, "saving")
    world.settle()
    world.advance(10_000)
    world.settle()
    assert (world.phase, world.now_status.stall, world.now_status.restarts) == ("Running", None, 0)
    assert STALLED not in world.events


def test_waiting_for_a_node_is_not_a_stall() -> None:
    world = World(running_world(**STALL).spec)
    world.settle()
    world.advance(10_000)
    world.settle()
    assert world.now_status.stall is None


@pytest.mark.parametrize(
    ("answers", "guilty"),
    [
        ({"api_server": QueueStatus()}, "environment"),
        ({"api_server": QueueStatus(batches_ready=1)}, "trainer"),
        ({"inference": "timed out"}, "trainer"),
        ({"api_server": "timed out"}, "api-server"),
    ],
)
def test_only_the_component_that_caused_the_stall_is_restarted_and_counted(
    answers: dict[str, Any], guilty: str
) -> None:
    world = running_world(**RESTART)
    probe(world, **answers)
    world.advance(601)
    first = world.reconcile()
    assert first.actions == (), "the record comes before the deed"
    world.reconcile()
    ending = [pod for pod in world.pods.values() if "deletionTimestamp" in pod["metadata"]]
    assert {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in ending} == {guilty}
    world.settle()
    assert world.now_status.restarts == len(ending)
    world.terminate()
    world.settle()
    world.start_all()
    world.settle()
    assert (world.phase, world.now_status.stall) == ("Running", None)
    assert world.now_status.restarts == len(ending)
    failures = {record.failures for record in records(world)}
    assert failures == {0, 1}, "one incident of one component"


def records(world: World) -> list[ComponentStatus]:
    components = world.now_status.components
    assert components
    assert components.api_server
    assert components.trainer
    return [components.api_server, components.trainer, *components.environments]


def test_stalls_use_up_the_budget() -> None:
    world = running_world(**RESTART, restarts={"limit": 1})
    for _ in range(2):
        probe(world, inference="timed out")
        world.advance(601)
        world.settle()
        world.terminate()
        world.settle()
        if world.phase != "Failed":
            world.start_all()
            world.settle()
    assert world.phase == "Failed"
    assert "No step since" in world.now_status.message
    assert "its only restart is used" in world.now_status.message
