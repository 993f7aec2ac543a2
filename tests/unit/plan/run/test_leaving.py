"""What is kept of pods that leave: of which, under which key, and how often a history is fetched."""

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from clotho.api.status import TrainingRunStatus
from clotho.plan.model import Delete, ObjectKey, Plan, delete_pod
from clotho.plan.pods import Pod, parse_pod
from clotho.plan.run.leaving import (
    containers_with_logs,
    history_in_log,
    is_fetch_due,
    kept_log,
    leaving,
    title_of,
    with_last_step,
)
from clotho_contract.history import History, Series
from clotho_contract.progress import Progress
from rig.objects import a_run, pod_body

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
ENDED = TrainingRunStatus(phase="Completed")


def pod(component: str, phase: str = "Running", **labels: str) -> Pod:
    body = pod_body(component, phase=phase)
    body["metadata"]["labels"] |= {f"clotho.dev/{name}": value for name, value in labels.items()}
    return parse_pod(body)


def test_deleted_pods_leave() -> None:
    trainer, api_server = pod("trainer"), pod("api-server")
    planned: Plan[TrainingRunStatus] = Plan(actions=(delete_pod(trainer),))
    assert leaving(a_run(), planned, (trainer, api_server)) == (trainer,)


def test_of_a_run_that_ends_the_trainer_and_what_has_ended_leave() -> None:
    pods = (pod("trainer"), pod("api-server"), pod("environment", "Failed"))
    assert leaving(a_run(), Plan(status=ENDED), pods) == (pods[0], pods[2])
    assert leaving(a_run(status={"phase": "Completed"}), Plan(status=ENDED), pods) == (), "they have left before"


def test_nothing_is_kept_for_a_run_that_is_deleted_itself() -> None:
    trainer = pod("trainer")
    expiry = Delete(key=ObjectKey("TrainingRun", "r"), uid="u", resource_version="1")
    assert leaving(a_run(), Plan(actions=(expiry, delete_pod(trainer))), (trainer,)) == ()


@pytest.mark.parametrize(
    ("component", "labels", "title"),
    [
        ("trainer", {}, "trainer"),
        ("trainer", {"index": "1"}, "trainer-1"),
        ("inference", {"index": "0"}, "inference-0"),
        ("environment", {"environment": "sums", "index": "2"}, "sums-2"),
    ],
)
def test_logs_are_titled_as_run_logs_shows_them(component: str, labels: dict[str, str], title: str) -> None:
    assert title_of(pod(component, **labels)) == title


def test_of_the_init_containers_only_a_failed_one_has_a_log() -> None:
    body = pod_body("environment")
    body["status"] |= {
        "initContainerStatuses": [
            {"name": "wait", "state": {"terminated": {"exitCode": 0}}},
            {"name": "install", "state": {"terminated": {"exitCode": 1}}},
        ],
        "containerStatuses": [{"name": "main", "state": {"waiting": {}}}],
    }
    assert [each.name for each in containers_with_logs(parse_pod(body))] == ["install"]


def test_the_history_in_a_log_is_found_and_not_kept_as_text() -> None:
    line = json.dumps({"time": "t", "message": "m", "history": {"series": {"steps": [4], "figures": {"loss": [0.5]}}}})
    text = f'step 4\n{line}\n{{"history": {{"series": 5}}}}\n'
    assert history_in_log(text) == History(series=Series(steps=(4,), figures={"loss": (0.5,)}))
    log = kept_log(a_run(), pod("trainer", attempt="3", restarts="2"), "main", text)
    assert (log.key, log.text.splitlines()[0]) == ("3.2.trainer.main", "step 4")
    assert line not in log.text


def test_the_last_step_of_a_stopped_trainer_is_added_from_its_termination_message() -> None:
    known = History(series=Series(steps=(1, 2), figures={"loss": (0.5, 0.4)}))
    last = Progress(state="waiting", step=3, total_steps=9, loss=0.3, reward_mean=0.1)
    series = with_last_step(known, last).series
    assert (series.steps, series.figures) == ((1, 2, 3), {"rewardMean": (None, None, 0.1), "loss": (0.5, 0.4, 0.3)})
    assert with_last_step(known, msgspec.structs.replace(last, step=2)) == known


@pytest.mark.parametrize(
    ("reached", "fetched", "seconds_ago", "hours", "is_due"),
    [
        (1, 0, None, 0, True),  # the first step, at once
        (5, 5, 900, 1, False),  # nothing new
        (6, 5, 59, 0.1, False),
        (6, 5, 61, 0.1, True),
        (6, 5, 61, 10, False),  # ten minutes of ten hours
        (6, 5, 601, 10, True),
    ],
)
def test_a_history_is_fetched_less_often_the_longer_a_run_lasts(
    reached: int, fetched: int, seconds_ago: float | None, hours: float, is_due: bool
) -> None:
    start = (NOW - timedelta(hours=hours)).isoformat()
    run = a_run(status={"phase": "Running", "startTime": start})
    before = None if seconds_ago is None else NOW - timedelta(seconds=seconds_ago)
    assert is_fetch_due(run, reached, fetched, before, NOW) is is_due
