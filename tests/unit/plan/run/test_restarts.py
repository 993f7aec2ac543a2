"""Which pods are restarted, when, and when the run fails instead."""

import itertools
from datetime import timedelta

import msgspec
import pytest

from clotho.api.status import ComponentStatus, LastExit, Retry
from clotho.api.training_run import Restarts
from clotho.plan.failures import Failure
from clotho.plan.model import RESTARTING, Delete
from clotho.plan.pods import parse_pod
from clotho.plan.run.restarts import GiveUp, RestartAt, backoff, decide_restart
from rig import cluster_access
from unit.plan.run.world import START, running_world

POD = parse_pod({"metadata": {"name": "trainer", "uid": "pod-1"}})
SPREAD = backoff(0, 10, "pod-1") / 10  # what the jitter makes of this pod's delays


def failure(reason: str = "OOMKilled", explanation: str = "out of memory", **kind: bool) -> Failure:
    return Failure(pod=POD, reason=reason, explanation=explanation, **kind)


def after(seconds: float, *, counted: bool = True) -> RestartAt:
    return RestartAt(START + timedelta(seconds=seconds), counted)


def record(failures: int = 0, **more: object) -> ComponentStatus:
    return ComponentStatus(name="trainer", state="Failed", failures=failures, **more)  # type: ignore[arg-type]


recently = LastExit(reason="Evicted", message="", time=START - timedelta(seconds=5))
long_ago = LastExit(reason="Evicted", message="", time=START - timedelta(hours=1))
evicted = failure("Evicted", "evicted", is_infrastructure=True)
invalid = failure("InvalidConfig", "batchSize 10 is not a multiple of 4", is_permanent=True)
waiting = Retry(uid="pod-0", at=START + timedelta(seconds=7))


@pytest.mark.parametrize(
    ("failed", "before", "expected"),
    [
        (failure(), record(0), after(10 * SPREAD)),
        (failure(), record(1), after(20 * SPREAD)),
        (failure(), record(2), after(40 * SPREAD)),
        (failure(), record(3), GiveUp("OOMKilled", "out of memory; all 3 restarts are used")),
        (evicted, record(3), after(0, counted=False)),
        (evicted, record(0, last_exit=long_ago), after(0, counted=False)),
        (evicted, record(0, last_exit=recently), after(10, counted=False)),
        (invalid, record(0), GiveUp("InvalidConfig", "batchSize 10 is not a multiple of 4")),
        (failure(), record(3, retries=(waiting,)), after(7, counted=False)),
    ],
)
def test_restart_depends_on_failure_budget_and_backoff(
    failed: Failure, before: ComponentStatus, expected: RestartAt | GiveUp
) -> None:
    assert decide_restart(failed, before, Restarts(limit=3, backoff_seconds=10), START) == expected


def test_failure_message_names_a_restart_limit_of_zero() -> None:
    assert decide_restart(failure(), record(), Restarts(limit=0), START) == GiveUp(
        "OOMKilled", "out of memory; restarts.limit is 0"
    )


def test_backoff_doubles_up_to_ten_minutes_and_spreads_between_pods() -> None:
    delays = [backoff(n, 10, "a") for n in range(30)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(delays))
    assert max(delays) <= 600 * 1.1
    spread = {backoff(0, 10, str(n)) for n in range(50)}
    assert len(spread) > 40
    assert all(9 <= delay <= 11 for delay in spread)


def test_a_failed_trainer_is_counted_first_kept_for_its_logs_and_then_replaced() -> None:
    world = running_world()
    name = world.named("trainer")
    world.end_pod(name, 1, reason="NonFiniteLoss", message="loss is nan", step=41)
    counting = world.reconcile()
    assert counting.actions == ()
    assert world.now_status.restarts == 1
    assert world.phase == "Starting"
    assert "loss is nan" in world.now_status.message
    world.reconcile()
    assert name in world.pods, "kept until its time comes"
    world.advance(20)
    deleting = world.reconcile()
    assert [type(action) for action in deleting.actions] == [Delete]
    world.reconcile()
    assert world.pods[name]["metadata"]["labels"]["clotho.dev/attempt"] == "2"
    world.settle()
    assert world.now_status.attempt == 2


def test_a_deleted_pod_is_replaced_in_the_very_next_pass_counted_but_free() -> None:
    world = running_world(restarts={"limit": 0})
    for restarts, component in enumerate(("api-server", "trainer", "environment"), start=1):
        name = world.named(component)
        del world.pods[name]
        world.reconcile()
        assert name in world.pods
        world.start_all()
        world.settle()
        assert (world.phase, world.now_status.restarts) == ("Running", restarts)
    assert world.events.count(RESTARTING) == 3


def test_a_replaced_pod_is_counted_even_if_the_operator_dies_right_after_replacing_it() -> None:
    world = running_world()
    del world.pods[world.named("trainer")]
    world.carry_out(world.plan(), writes=1)
    world.settle()
    assert world.now_status.restarts == 1


def test_new_replicas_and_a_resumed_run_are_no_restarts() -> None:
    world = running_world()
    world.change_spec(environments=[world.spec["environments"][0] | {"replicas": 4}])
    world.settle()
    world.change_spec(suspend=True)
    for _ in range(4):
        world.settle()
        world.terminate()
    world.change_spec(suspend=False)
    world.settle()
    world.start_all()
    world.settle()
    assert (world.phase, world.now_status.restarts) == ("Running", 0)


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("first_gone", ["api-server", "trainer", "environment", ""])
def test_pods_that_are_still_going_when_a_run_is_resumed_are_no_restarts(replicas: int, first_gone: str) -> None:
    world = running_world(trainer={"replicas": replicas})
    world.change_spec(suspend=True)
    for _ in range(5):
        world.settle()
        for name, pod in world.pods.items():
            if "deletionTimestamp" in pod["metadata"]:
                world.end_pod(name, 0, reason="Stopped", step=41)
    assert world.phase == "Suspended"
    world.advance(5000)
    world.change_spec(suspend=False)
    if first_gone:
        world.settle()
        world.terminate(first_gone)
    world.settle()
    assert (world.phase, world.now_status.start_time) == ("Pending", None)
    assert "gone" in world.now_status.message
    world.terminate()
    world.settle()
    world.start_all()
    world.settle()
    assert (world.phase, world.now_status.attempt, world.now_status.restarts) == ("Running", 2, 0)
    assert "Restarting" not in world.events


def test_replicas_that_fall_together_cost_one_restart() -> None:
    world = running_world()
    for index in range(2):
        world.end_pod(world.named("environment", index), 1)
    world.reconcile()
    assert world.now_status.components
    letters = world.now_status.components.environments[0]
    assert (letters.restarts, letters.failures, len(letters.retries)) == (2, 1, 2)


def test_an_environment_that_leaves_early_is_replaced_but_not_after_the_last_step() -> None:
    world = running_world()
    name = world.named("environment")
    world.end_pod(name, 0, reason="Finished")
    world.settle()
    assert world.now_status.restarts == 1

    world = running_world()
    world.make_progress(100, "saving")
    world.end_pod(world.named("environment"), 0, reason="Finished")
    world.settle()
    assert (world.phase, world.now_status.restarts) == ("Running", 0)
    assert "final checkpoint" in world.now_status.message


def test_an_environment_that_knows_the_last_step_before_the_operator_is_not_replaced() -> None:
    world = running_world()
    world.make_progress(97)
    for index in range(2):
        world.end_pod(world.named("environment", index), 0, reason="Finished", step=100)
    world.settle()
    wake_at = world.plan().wake_at
    assert wake_at is not None
    assert (wake_at - world.now).total_seconds() <= 180
    assert world.now_status.restarts == 0
    world.advance(120)
    world.settle()
    world.make_progress(100, "finished")
    world.settle()
    assert (world.phase, world.now_status.restarts) == ("Completed", 0)


def test_an_environment_that_is_wrong_about_the_last_step_is_replaced_after_a_while() -> None:
    world = running_world()
    world.make_progress(50)
    world.end_pod(world.named("environment"), 0, reason="Finished", step=100)
    world.settle()
    assert world.now_status.restarts == 0
    world.advance(181)
    world.settle()
    assert world.now_status.restarts == 1


def test_the_api_server_is_recreated_on_its_volume_and_the_run_continues() -> None:
    world = running_world()
    world.make_progress(50)
    world.end_pod(world.named("api-server"), 137, container_reason="OOMKilled")
    world.settle()
    world.advance(20)
    world.settle()
    pod = world.pods[world.named("api-server")]
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v]
    assert claims == ["demo-0123abcd-api-server"]
    world.start_all()
    world.settle()
    assert world.phase == "Running"
    assert world.now_status.attempt == 1, "the trainer was left alone"


def test_a_raised_limit_counts_at_once() -> None:
    world = running_world(restarts={"limit": 0})
    world.change_spec(restarts={"limit": 1})
    world.end_pod(world.named("trainer"), 1)
    world.settle()
    assert world.phase == "Starting"


def test_nothing_is_deleted_on_a_record_that_was_not_stored() -> None:
    world = running_world()
    world.end_pod(world.named("trainer"), 137, pod_reason="Evicted")
    for _ in range(5):
        world.carry_out(world.plan(), writes=0)  # the operator dies before its status is written
        assert world.named("trainer")
        assert world.now_status.restarts == 0
    world.settle()
    assert world.now_status.restarts == 1


def test_a_pod_written_at_the_same_time_as_its_secret_is_left_alone() -> None:
    world = running_world()
    key, secret = next((key, seen) for key, seen in world.objects.items() if key.kind == "Secret")
    world.objects[key] = msgspec.structs.replace(secret, created_at=secret.created_at + timedelta(seconds=1))
    assert world.plan().actions == ()


def test_pods_are_replaced_when_their_token_secret_was_recreated() -> None:
    world = running_world()
    world.advance(100)
    secret = next(key for key in world.objects if key.kind == "Secret")
    del world.objects[secret]
    before = {pod["metadata"]["uid"] for pod in world.pods.values()}
    ended: list[set[str]] = []
    for _ in range(3):
        world.settle()
        assert secret in world.objects
        ended.append(
            {cluster_access.component(pod) for pod in world.pods.values() if "deletionTimestamp" in pod["metadata"]}
        )
        assert before >= {pod["metadata"]["uid"] for pod in world.pods.values()}, "none is made while an old one lives"
        world.terminate()
    assert ended == [{"environment"}, {"trainer"}, {"api-server"}]
    world.settle()
    assert len(world.pods) == len(before)
    assert not before & {pod["metadata"]["uid"] for pod in world.pods.values()}
    assert world.now_status.components
    assert world.now_status.components.trainer
    assert world.now_status.components.trainer.failures == 0


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "200Mi"}}}]}},
            "the trainer ran out of memory: OOMKilled (limit 200Mi, set in trainer.template)",
        ),
        (
            {},
            "the trainer ran out of memory: OOMKilled (no limit of its own, so its node ran out; set one in "
            "trainer.template)",
        ),
    ],
)
def test_cause_stays_visible_until_the_replacement_is_ready(template: dict[str, object], words: str) -> None:
    world = running_world(trainer={"template": template}, restarts={"limit": 3, "backoffSeconds": 10})
    world.end_pod(world.named("trainer"), 137, container_reason="OOMKilled")
    world.settle()
    assert world.now_status.message.startswith(words[0].upper() + words[1:])
    assert world.now_status.message.endswith("UTC (attempt 2 of 4).")
    world.advance(60)
    world.settle()
    world.terminate()
    world.settle()
    assert world.now_status.message == f"Waiting for the trainer to become ready. Attempt 2 of 4; last: {words}."


def test_memory_limit_of_the_operators_own_choice_can_be_raised() -> None:
    world = running_world(restarts={"limit": 3, "backoffSeconds": 10})
    world.end_pod(world.named("environment", 0), 137, container_reason="OOMKilled")
    world.settle()
    assert "OOMKilled (limit 4Gi; raise it in environments.letters.template)." in world.now_status.message
