"""What reaches a status, and when: complete, and without needless writes."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from clotho.plan.model import ObjectKey, Probe, QueueStatus, Refusal
from clotho.plan.run.plan import plan
from clotho_contract.progress import CopyInfo, EvaluationSummary
from unit.plan.kstatus import kstatus
from unit.plan.pulling import pulling
from unit.plan.run.world import START, World, minimal_spec, running_world, stamp


def test_a_quick_start_costs_nine_creations_and_one_status_write() -> None:
    world = World(minimal_spec(storage={"ephemeral": True}, environments=[{"name": "letters", "config": {}}]))
    first = world.reconcile()
    assert [action.key.kind for action in first.actions] == ["Secret", "NetworkPolicy", "Service", *["Pod"] * 3]
    world.start_all()
    world.settle()
    assert world.phase == "Running"
    assert world.status_writes == 1


def test_a_slow_start_reports_the_starting_phase_after_a_second() -> None:
    world = World()
    first = world.reconcile()
    assert first.status is None
    assert first.wake_at == START + timedelta(seconds=1)
    world.advance(1)
    world.reconcile()
    assert world.phase == "Starting"
    assert kstatus(world.run) == "InProgress"
    assert "Waiting for the API server, the trainer, environment letters (0 of 2)" in world.now_status.message


def test_progress_is_written_at_most_every_thirty_seconds() -> None:
    world = running_world()
    writes = world.status_writes
    for second in range(1, 60):
        world.advance(1)
        world.make_progress(second)
        world.reconcile()
    assert world.status_writes - writes == 1
    assert world.now_status.progress
    reached = world.now_status.progress.step
    assert 25 <= reached <= 30
    assert world.now_status.message == f"Training: step {reached}/100."


@pytest.mark.parametrize(("limits", "can_wait"), [({}, True), ({"deadlineSeconds": 10}, False)])
def test_new_runs_may_start_before_progress_is_written_but_not_before_a_deadline(limits, can_wait) -> None:
    world = running_world(**limits)
    world.make_progress(1)
    assert world.plan().can_wait is can_wait


def test_evaluations_reach_the_status_and_stay_there() -> None:
    world = running_world()
    found = EvaluationSummary(environment="letters", figure="accuracy", step=5, value=0.5, best_step=5, best=0.5)
    world.make_progress(5, evaluations=(found,))
    world.advance(31)
    world.settle()
    assert world.now_status.evaluations == (found,)
    world.make_progress(6)
    world.advance(31)
    world.settle()
    assert world.now_status.evaluations == (found,), "a trainer that was restarted has none yet"


def test_a_step_that_compiles_first_differs_from_one_that_hangs() -> None:
    world = running_world()
    world.make_progress(0)
    for state, message in [
        ("waiting", "Training: step 0/100."),
        ("compiling", "Compiling the model's layers for step 1/100; later steps are faster."),
        ("training", "Training: step 0/100."),
        ("of a newer trainer", "Training: step 0/100."),
    ]:
        assert world.probes.trainer
        answer = msgspec.structs.replace(world.probes.trainer.answer, state=state)  # and no other figure changes
        probe = msgspec.structs.replace(world.probes.trainer, answer=answer)
        world.probes = msgspec.structs.replace(world.probes, trainer=probe)
        world.advance(31)
        world.settle()
        assert world.now_status.message == message


def test_a_transition_takes_the_newest_progress_along() -> None:
    world = running_world()
    world.make_progress(17)
    world.change_spec(stop=True)
    world.reconcile()
    assert world.now_status.progress
    assert world.now_status.progress.step == 17


def test_progress_in_numbers() -> None:
    world = running_world()
    world.make_progress(
        25,
        reward_mean=0.6123456789,
        loss=float("nan"),
        tokens_per_second=4310.0,
        seconds_per_step=2.0,
        wandb_url="https://w",
        engine="fast",
    )
    world.advance(31)
    world.settle()
    status = world.now_status
    assert status.progress
    assert status.progress.engine == "fast"
    assert (status.progress.percent, status.progress.eta_seconds) == (25, 150)
    assert (status.progress.reward_mean, status.progress.loss) == (0.6123, None)
    assert status.wandb_url == "https://w"
    assert [sample.step for sample in status.history] == [25]


def test_a_restarted_trainer_does_not_wipe_out_what_is_known() -> None:
    world = running_world()
    world.make_progress(40, reward_mean=0.7, engine="fast")
    world.advance(31)
    world.settle()
    del world.pods[world.named("trainer")]
    world.settle()
    progress = world.now_status.progress
    assert progress
    assert (progress.step, progress.reward_mean, progress.engine) == (40, 0.7, "fast")
    world.start_all()
    world.make_progress(25, "loading")
    world.advance(31)
    world.settle()
    progress = world.now_status.progress
    assert progress
    assert (progress.step, progress.reward_mean, progress.engine) == (40, 0.7, "fast")


def pending(**status: Any) -> World:
    world = World()
    world.settle()
    world.pods[world.named("trainer")]["status"] |= status
    world.settle()
    return world


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "main", "image": "registry/x:1", "state": state}]}


def test_the_schedulers_message_is_in_status() -> None:
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    world = pending(conditions=[scheduled])
    assert world.now_status.message == f"Waiting for a node with 1 nvidia.com/gpu: {words}"
    assert kstatus(world.run) == "InProgress"
    world.pods[world.named("trainer")]["spec"]["nodeName"] = "gpu-1"
    world.settle()
    assert words not in world.now_status.message


@pytest.mark.parametrize(
    ("reason", "message", "phase", "words"),
    [
        ("ImagePullBackOff", "not found", "Starting", "The image registry/x:1 of the trainer cannot be pulled"),
        ("InvalidImageName", "", "Failed", "cannot be pulled (InvalidImageName)"),
        ("CreateContainerConfigError", 'secret "wandb" not found', "Starting", 'secret "wandb" not found'),
        ("ContainerCreating", "", "Starting", "Waiting for"),
    ],
)
def test_reasons_for_a_container_not_starting_are_in_status(reason: str, message: str, phase: str, words: str) -> None:
    world = pending(**waiting(reason, message))
    assert world.phase == phase
    assert words in world.now_status.message


def test_a_new_run_fails_when_its_image_cannot_be_pulled_for_ten_minutes() -> None:
    words = 'Back-off pulling image "registry/x:1": ErrImagePull: manifest unknown'
    world = pending(**waiting("ImagePullBackOff", words))
    wake_at = world.reconcile().wake_at
    assert wake_at is not None
    assert wake_at <= world.now + timedelta(minutes=10)
    world.advance(590)
    world.settle()
    assert world.phase == "Starting"
    world.advance(10)
    world.settle()
    assert world.phase == "Failed"
    assert "manifest unknown. It was tried for 10 minutes." in world.now_status.message
    for _ in range(4):
        world.settle()
        world.terminate()
    assert world.pods == {}, "the GPU is free again"


def test_a_run_that_has_trained_outlives_an_outage_of_the_registry() -> None:
    world = running_world()
    world.end_pod(world.named("trainer"), 137, container_reason="OOMKilled")
    world.advance(60)
    world.settle()
    world.advance(60)
    world.settle()
    world.terminate()
    world.settle()
    world.pods[world.named("trainer")]["status"] |= waiting("ImagePullBackOff", "unavailable")
    world.advance(3600)
    world.settle()
    assert world.phase == "Starting"


def test_volumes_that_are_not_ready_are_named_after_a_while() -> None:
    world = World(minimal_spec())
    world.settle()
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(world.now)}
    unprepared = {"type": "PodReadyToStartContainers", "status": "False"}
    pod = world.pods[world.named("trainer")]
    volumes = [{"name": name, "configMap": {"name": "rewards"}} for name in ("code", "dataset")]
    pod["spec"] |= {"nodeName": "gpu-1", "volumes": volumes}
    pod["status"] |= waiting("ContainerCreating") | {"conditions": [bound, unprepared]}
    world.settle()
    assert world.now_status.message.startswith("Waiting for")
    wake_at = world.plan().wake_at
    assert wake_at is not None
    assert (wake_at - world.now).total_seconds() <= 30
    world.advance(30)
    world.settle()
    assert world.now_status.message == (
        "The trainer: volumes or network not ready on node gpu-1, or, before Kubernetes 1.36, its image "
        f"{pod['spec']['containers'][0]['image']} is being pulled; it mounts ConfigMap rewards; "
        f"`kubectl describe pod {world.named('trainer')} -n team` shows which."
    )
    unprepared["status"] = "True"
    world.settle()
    assert "volumes" not in world.now_status.message, "an image may take its time"


def pull(world: World, component: str, image: str, *init: dict[str, Any]) -> None:
    pod = world.pods[world.named(component)]
    pod["spec"]["nodeName"] = "gpu-1"
    pod["status"] |= pulling(image, world.now) | {"initContainerStatuses": list(init)}


def test_an_image_that_takes_its_time_is_named_with_the_time_since_when_and_one_status_write() -> None:
    world = World()
    world.settle()
    since = f"{world.now:%H:%M:%S} UTC"
    pull(world, "trainer", "registry/trainer:1")
    world.settle()
    waiting_for = "Waiting for the API server, the trainer, environment letters (0 of 2) to become ready"
    assert world.now_status.message == f"{waiting_for}."
    wake_at = world.plan().wake_at
    assert wake_at is not None
    assert (wake_at - world.now).total_seconds() <= 10
    world.advance(10)
    writes = world.status_writes
    world.settle()
    sentence = f"{waiting_for}; pulling image registry/trainer:1 of the trainer since {since}."
    assert world.now_status.message == sentence
    for _ in range(5):
        world.advance(60)
        world.settle()
    assert (world.now_status.message, world.status_writes) == (sentence, writes + 1)
    world.start_all()
    world.settle()
    assert "pulling" not in world.now_status.message


def test_an_image_that_several_pods_pull_is_named_once() -> None:
    world = World(minimal_spec(trainer={"replicas": 3}))
    world.settle()
    for name in [name for name in world.pods if "trainer" in name]:
        world.pods[name]["status"] |= waiting("ContainerCreating") | {
            "conditions": [
                {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": stamp(world.now)}
            ]
        }
    world.advance(60)
    world.settle()
    assert world.now_status.message.count("pulling image") == 1


@pytest.mark.parametrize(
    ("init_state", "is_pulling"),
    [({"terminated": {}}, True), ({"running": {}}, False), ({"waiting": {"reason": "PodInitializing"}}, True)],
)
def test_a_pod_that_waits_in_an_init_container_pulls_nothing(init_state: dict[str, Any], is_pulling: bool) -> None:
    world = World()
    world.settle()
    pull(world, "environment", "registry/x:1", {"name": "wait", "image": "registry/wait:1", "state": init_state})
    world.advance(60)
    world.settle()
    assert ("pulling image" in world.now_status.message) == is_pulling


def test_a_pull_counts_from_the_end_of_the_init_containers() -> None:
    world = World()
    world.settle()
    ended = stamp(world.now + timedelta(seconds=55))
    pull(world, "environment", "registry/x:1", {"name": "wait", "state": {"terminated": {"finishedAt": ended}}})
    world.advance(60)
    world.settle()
    assert "pulling image" not in world.now_status.message
    world.advance(5)
    world.settle()
    assert f"registry/x:1 of environment letters since {ended[11:19]} UTC" in world.now_status.message


def test_a_permanent_failure_takes_precedence_over_a_temporary_one() -> None:
    world = pending(**waiting("ImagePullBackOff"))
    world.pods[world.named("environment")]["status"] |= waiting("InvalidImageName")
    world.settle()
    assert world.phase == "Failed"
    assert "environment letters" in world.now_status.message


def test_a_pod_that_does_not_end_is_reported_and_never_forced() -> None:
    world = running_world()
    world.delete_pod(world.named("trainer"))
    world.pods[world.named("trainer")]["spec"]["nodeName"] = "lost-node"
    world.advance(400)
    world.settle()
    assert "on node lost-node does not terminate" in world.now_status.message
    assert f"`kubectl delete pod {world.named('trainer')} -n team --force`" in world.now_status.message
    assert world.plan().actions == ()


@pytest.mark.parametrize(("permanent", "phase"), [(True, "Failed"), (False, "Starting")])
def test_refusals_of_the_api_server_are_reported_verbatim(permanent: bool, phase: str) -> None:
    world = World()
    world.settle()
    key = ObjectKey("Pod", world.named("trainer"))
    del world.pods[key.name]
    refusal = Refusal(message="exceeded quota: gpus", is_permanent=permanent)
    observed = msgspec.structs.replace(world.observed, refused={key: refusal})
    world.carry_out(plan(world.run, observed, world.now + timedelta(seconds=5), world.settings))
    assert world.phase == phase
    assert "refused Pod demo-0123abcd-trainer: exceeded quota: gpus" in world.now_status.message


def test_a_wrong_spec_that_slipped_through_is_refused_and_nothing_is_created() -> None:
    world = World(minimal_spec(training={"steps": 1, "batchSize": 100}))
    world.settle()
    accepted = world.now_status.condition("Accepted")
    assert accepted
    assert accepted.status == "False"
    assert accepted.message == (
        "The spec is not valid: training.batchSize: 100 is not a multiple of group_size 8 (environment letters); "
        "use 96 or 104."
    )
    assert kstatus(world.run) == "Failed"
    assert not world.pods
    assert not world.objects


def test_a_template_that_is_no_pod_is_refused() -> None:
    world = World(minimal_spec(trainer={"template": {"spec": {"containers": "many"}}}))
    world.settle()
    assert "spec.trainer.template.spec.containers: expected a list, got a string." in world.now_status.message
    assert not world.pods


def test_pods_of_a_run_whose_spec_became_wrong_are_left_alone() -> None:
    world = running_world()
    world.change_spec(training={"steps": 1, "batchSize": 100})
    world.settle()
    assert len(world.pods) == 4
    assert world.phase == "Running"
    assert kstatus(world.run) == "Failed"


def test_events_are_written_with_their_status_and_only_on_transitions() -> None:
    world = running_world()
    assert world.events == ["Starting", "Running"]
    world.settle()
    world.change_spec(stop=True)
    for _ in range(5):
        world.settle()
        world.terminate()
    assert world.events == ["Starting", "Running", "Stopping", "Stopped"]


def test_replicas_can_be_raised_and_lowered() -> None:
    world = running_world()
    environment = world.spec["environments"][0]
    world.change_spec(environments=[environment | {"replicas": 4}])
    world.settle()
    assert world.components().count("environment") == 4
    assert world.phase == "Running", "the others go on"
    world.start_all()
    world.change_spec(environments=[environment | {"replicas": 1}])
    world.settle()
    world.terminate()
    world.settle()
    assert world.components().count("environment") == 1
    assert world.named("environment").endswith("-0")
    assert kstatus(world.run) == "Current"


def test_lost_state_of_the_api_server_is_a_condition_and_one_event() -> None:
    world = running_world()
    uid = world.pods[world.named("api-server")]["metadata"]["uid"]
    lost = "the database was damaged and is kept as x; the groups queued in it are lost"
    probe = Probe(pod_uid=uid, taken_at=world.now, answer=QueueStatus(state_lost=lost))
    world.probes = msgspec.structs.replace(world.probes, api_server=probe)
    for _ in range(3):
        world.advance(60)
        world.settle()
    found = world.now_status.condition("APIServerReady")
    assert found is not None
    assert (found.status, found.reason) == ("True", "APIServerStateLost")
    assert found.message == "The database was damaged and is kept as x; the groups queued in it are lost."
    assert world.events.count("APIServerStateLost") == 1
    assert (world.phase, kstatus(world.run)) == ("Running", "Current")
    world.probes = msgspec.structs.replace(world.probes, api_server=msgspec.structs.replace(probe, pod_uid="earlier"))
    world.advance(60)
    world.settle()
    found = world.now_status.condition("APIServerReady")
    assert found is not None
    assert (found.reason, found.message) == ("Ready", "")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("", "The last step is done; waiting for the final checkpoint."),
        (
            "bucket runs: the store is full",
            "The last step is done; waiting for the copy of its checkpoint: bucket runs: the store is full.",
        ),
    ],
)
def test_what_delays_the_end_of_a_trained_run_is_its_message(problem: str, message: str) -> None:
    world = running_world()
    world.make_progress(100, copies=CopyInfo(location="s3://runs/lab/demo-1a2b", step=99, problem=problem))
    world.settle()
    assert (world.phase, world.now_status.message) == ("Running", message)


def test_copies_of_checkpoints_are_a_condition_that_outlives_its_trainer() -> None:
    world = running_world()
    place = "s3://runs/lab/demo-1a2b"
    world.make_progress(5, copies=CopyInfo(location=place, step=4))
    world.settle()
    found = world.now_status.condition("CheckpointsCopied")
    assert found is not None
    assert (found.status, found.message) == ("True", f"Step 4 is in {place}.")
    world.make_progress(6, copies=CopyInfo(location=place, step=4, problem="bucket runs: the store is full"))
    world.settle()
    found = world.now_status.condition("CheckpointsCopied")
    assert found is not None
    assert (found.status, found.reason, found.message) == ("False", "CopyFailed", "Bucket runs: the store is full.")
    assert (world.phase, kstatus(world.run)) == ("Running", "Current"), "training goes on"
    world.make_progress(7)
    world.settle()
    assert world.now_status.condition("CheckpointsCopied") is not None
