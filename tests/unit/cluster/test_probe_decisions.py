"""Which pods are probed, how often, and how the answers are interpreted."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from clotho.cluster.cache import Key
from clotho.cluster.probe import Answers, Prober, ProbeTimes, operator_token, pause, questions, queue_status
from clotho.cluster.store import Store
from clotho.plan.model import Probe, Probes, QueueStatus
from clotho.plan.pods import parse_pod
from clotho_contract.api_protocol import ApiStatus, ConnectedEnvironment
from clotho_contract.progress import Progress
from rig.objects import UID, a_pod, a_run, pod_body, run_body

NOW = datetime(2026, 11, 15, 13, 0, tzinfo=UTC)
PODS = (a_pod("trainer"), a_pod("api-server"), a_pod("environment"))
TIMES = ProbeTimes(interval=30.0, startup=2.0)


def asked(known: Probes, **status: object) -> list[str]:
    run = a_run(status={"phase": "Running", **status})
    return [question.target for question in questions(run, PODS, known, NOW)]


def trainer_reported(last_step: datetime | None) -> Probes:
    answer = Progress(state="training", step=1, total_steps=9, last_step_time=last_step and last_step.isoformat())
    return Probes(trainer=Probe(pod_uid="uid-trainer", taken_at=NOW, answer=answer))


def test_only_the_trainer_of_a_healthy_run_is_probed() -> None:
    assert asked(Probes()) == ["trainer"]
    assert asked(trainer_reported(NOW - timedelta(seconds=299))) == ["trainer"]


def test_of_several_trainer_pods_only_the_first_is_probed() -> None:
    body = pod_body("trainer", uid="uid-follower")
    body["metadata"]["labels"] |= {"clotho.dev/index": "1", "clotho.dev/attempt": "2"}
    follower = parse_pod(body)
    assert questions(a_run(status={"phase": "Running"}), (follower,), Probes(), NOW) == ()
    (question,) = questions(a_run(status={"phase": "Running"}), (follower, *PODS), Probes(), NOW)
    assert question.pod.uid == "uid-trainer"


def test_autoscaling_needs_the_queue_of_the_api_server() -> None:
    environment = {"name": "letters", "config": {"group_size": 8}, "autoscaling": {"max": 4}}
    run = a_run(status={"phase": "Running"}, environments=[environment])
    found = questions(run, PODS, trainer_reported(NOW), NOW)
    assert [question.target for question in found] == ["trainer", "api_server"]


def test_a_new_api_server_is_probed_once() -> None:
    """It may have lost the state of the last one."""
    body = pod_body("api-server", uid="uid-2")
    body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    pods, run = (a_pod("trainer"), parse_pod(body)), a_run(status={"phase": "Running"})

    def asked_after(pod_uid: str, answer: QueueStatus | None) -> bool:
        known = Probe(pod_uid=pod_uid, taken_at=NOW, answer=answer)
        found = questions(run, pods, structs.replace(trainer_reported(NOW), api_server=known), NOW)
        return "api_server" in [question.target for question in found]

    assert asked_after("uid-1", QueueStatus())
    assert asked_after("uid-2", None)
    assert not asked_after("uid-2", QueueStatus())


EVERYBODY = ["trainer", "api_server", "inference"]


def test_a_time_without_a_zone_is_accepted() -> None:
    naive = NOW.replace(tzinfo=None)
    assert asked(trainer_reported(naive - timedelta(seconds=299))) == ["trainer"]
    assert asked(trainer_reported(naive - timedelta(seconds=301))) == EVERYBODY


def test_every_pod_is_probed_when_the_run_slows_down() -> None:
    assert asked(trainer_reported(NOW - timedelta(seconds=301))) == EVERYBODY


def test_every_pod_is_probed_when_the_trainer_does_not_answer() -> None:
    silent = Probes(trainer=Probe(pod_uid="uid-trainer", taken_at=NOW, problem="no answer"))
    assert asked(silent) == EVERYBODY


def test_every_pod_is_probed_during_a_stall() -> None:
    stall = {"cause": "TrainerHung", "since": "2026-11-15T12:00:00Z"}
    assert asked(trainer_reported(NOW), stall=stall) == EVERYBODY


def test_before_the_first_step_time_counts_from_when_the_run_was_up() -> None:
    assert asked(trainer_reported(None), runningTime="2026-11-15T12:54:00Z") == EVERYBODY
    assert asked(trainer_reported(None), runningTime="2026-11-15T12:56:00Z") == ["trainer"]


@pytest.mark.parametrize("pod", [a_pod("trainer", phase="Pending"), a_pod("trainer", address="")])
def test_a_pod_that_is_pending_or_has_no_address_is_not_probed(pod: object) -> None:
    assert questions(a_run(), (pod,), Probes(), NOW) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "stall_after", "expected"),
    [
        ("Running", 600, 30.0),
        ("Starting", 600, 2.0),
        ("Stopping", 600, 2.0),
        ("Running", 40, 10.0),  # often enough to see a short stall
        ("Running", 1, 0.5),
        ("Completed", 600, None),
        ("Suspended", 600, None),
    ],
)
def test_probe_interval_follows_phase_and_stall_limit(phase: str, stall_after: int, expected: float | None) -> None:
    run = a_run(status={"phase": phase}, stall={"afterSeconds": stall_after})
    assert pause(run, trainer_reported(NOW), TIMES, NOW) == expected


@pytest.mark.parametrize(
    ("seconds_since_step", "stall_after", "expected"),
    [
        (-5, 1800, 30.0),  # clocks differ
        (59, 1800, 30.0),
        (100, 1800, 50.0),
        (300, 1800, 120.0),
        (300, 200, 30.0),  # it may be stalled
        (300, 640, 120.0),
        (901, 1800, 30.0),
    ],
)
def test_a_run_with_long_steps_is_probed_less_often(seconds_since_step: int, stall_after: int, expected: float) -> None:
    run = a_run(status={"phase": "Running"}, stall={"afterSeconds": stall_after})
    known = trainer_reported(NOW - timedelta(seconds=seconds_since_step))
    assert pause(run, known, TIMES, NOW) == expected


def test_a_trainer_without_an_answer_and_autoscaling_keep_the_interval() -> None:
    long_ago = NOW - timedelta(seconds=300)
    silent = Probes(trainer=Probe(pod_uid="uid-trainer", taken_at=NOW, problem="no answer"))
    assert pause(a_run(status={"phase": "Running"}, stall={"afterSeconds": 1800}), silent, TIMES, NOW) == 30.0
    environment = {"name": "letters", "config": {"group_size": 8}, "autoscaling": {"max": 4}}
    elastic = a_run(status={"phase": "Running"}, environments=[environment], stall={"afterSeconds": 1800})
    assert pause(elastic, trainer_reported(long_ago), TIMES, NOW) == 30.0


def test_batches_that_wait_for_the_trainer_include_leased_ones() -> None:
    connected = ConnectedEnvironment(id=0, name="env_0", seconds_since_heard=0.0, queued_groups=0)
    answer = ApiStatus(
        current_step=4,
        queue_size=5,
        queue_sequences=20,
        leased_batches=1,
        full=True,
        environments=(connected,) * 2,
    )
    status = queue_status(answer, batch_size=8)
    assert (status.batches_ready, status.is_full, status.environments_connected) == (3, True, 2)


RUN = Key("ns", "r")


async def test_a_pod_that_was_not_found_for_a_while_is_probed_again() -> None:
    """Its labels were changed by hand and restored."""
    store, answers = Store(), Answers()
    prober = Prober(store, answers, TIMES, lambda _: None)
    store.handle_event("TrainingRun", False, run_body(status={"phase": "Running"}))
    answers.keep(RUN, UID, trainer_reported(NOW))
    changed = pod_body("trainer", 5)
    changed["metadata"]["labels"]["clotho.dev/owner-uid"] = "another"
    store.handle_event("Pod", False, changed)
    assert await prober.probe(RUN, NOW) == (False, None)
    assert not prober.has_unprobed_pod(RUN)
    store.handle_event("Pod", False, pod_body("trainer", 6))
    assert prober.has_unprobed_pod(RUN)


def test_a_token_that_is_not_text_is_sent_as_a_wrong_one() -> None:
    store = Store()
    store.handle_event("TrainingRun", False, run_body())
    labels = {"clotho.dev/run": "r", "clotho.dev/owner-uid": UID}
    metadata = {"name": "r", "namespace": "ns", "uid": "s", "resourceVersion": "1", "labels": labels}
    store.take_in("Secret", {"metadata": metadata, "data": {"CLOTHO_OPERATOR_TOKEN": "//4="}})
    assert operator_token(store, RUN) == "\ufffd\ufffd"
