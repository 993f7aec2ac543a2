"""What the pages show of objects."""

from typing import Any

import pytest

from clotho.web.views.catalogue import environment_view, inference_test_view
from clotho.web.views.comparison import compared_settings
from clotho.web.views.run import commands, history_parts, manifest, run_parts
from clotho.web.views.runs import queue_positions, run_row
from clotho.web.views.timeline import timeline
from clotho_contract.history import Evaluation, History, Series
from rig.objects import run_body

PROGRESS = {"step": 40, "totalSteps": 100, "percent": 40, "rewardMean": 0.5, "etaSeconds": 60}


def test_row_of_a_running_run() -> None:
    status = {"phase": "Running", "progress": PROGRESS, "history": [{"step": 1, "rewardMean": 0.1}], "restarts": 2}
    row = run_row(run_body(status=status, trainer={"gpus": 8, "replicas": 2}, inference={"replicas": 3}))
    assert row["gpus"] == 19
    assert (row["step"], row["steps"], row["secondsLeft"], row["restarts"]) == (40, 100, 60, 2)
    assert row["rewards"] == [(1, 0.1), (40, 0.5)]


def test_row_of_a_run_that_ended_has_no_time_left_and_its_newest_step() -> None:
    row = run_row(run_body(status={"phase": "Stopped", "progress": PROGRESS, "checkpoint": {"step": 45, "path": "/c"}}))
    assert (row["step"], row["secondsLeft"]) == (45, None)


@pytest.mark.parametrize("body", [run_body(), run_body(training={"steps": "many"}), run_body(status={"phase": 3})])
def test_row_of_a_run_that_is_new_or_unreadable(body: dict[str, Any]) -> None:
    assert run_row(body)["phase"] == "Pending"


def test_queue_positions_are_counted_by_age_in_each_namespace() -> None:
    def queued(name: str, namespace: str, created: str) -> dict[str, Any]:
        body = run_body(status={"queuedSince": "2026-11-15T13:00:00Z"})
        changes = {"name": name, "namespace": namespace, "uid": name, "creationTimestamp": created}
        return {**body, "metadata": {**body["metadata"], **changes}}

    bodies = [
        queued("young", "a", "2026-11-15T12:30:00Z"),
        queued("old", "a", "2026-11-15T12:00:00Z"),
        queued("only", "b", "2026-11-15T12:10:00Z"),
        run_body(),
    ]
    assert queue_positions(bodies) == {"a/old": 1, "a/young": 2, "b/only": 1}


def test_timeline_has_phases_restarts_stalls_checkpoints_and_evaluations_in_order() -> None:
    exit_ = {"reason": "OOMKilled", "message": "out of memory", "time": "2026-11-15T12:20:00Z"}
    status = {
        "phase": "Failed",
        "message": "gave up",
        "startTime": "2026-11-15T12:01:00Z",
        "runningTime": "2026-11-15T12:02:00Z",
        "completionTime": "2026-11-15T13:00:00Z",
        "stall": {"cause": "TrainerHung", "since": "2026-11-15T12:40:00Z"},
        "checkpoint": {"step": 40, "path": "/c"},
        "progress": {**PROGRESS, "lastStepTime": "2026-11-15T12:39:00Z"},
        "components": {"trainer": {"name": "trainer", "state": "Failed", "lastExit": exit_}},
    }
    event = {"reason": "Restarting", "message": "again", "type": "Warning", "lastTimestamp": "2026-11-15T12:21:00Z"}
    judged = Evaluation(step=20, time="2026-11-15T12:10:00Z", environment="letters", figures={"right": 0.25})
    found = timeline(run_body(status=status), [{**event, "count": 3, "metadata": {}}], [judged])
    assert [(moment.kind, moment.title) for moment in found] == [
        ("phase", "Created"),
        ("phase", "Starting"),
        ("phase", "Running"),
        ("evaluation", "Evaluation of letters at step 20"),
        ("restart", "trainer: OOMKilled"),
        ("restart", "Restarting"),
        ("checkpoint", "Newest checkpoint: step 40"),
        ("stall", "Stalled: TrainerHung"),
        ("phase", "Failed"),
    ]
    assert found[3].text == "right 0.25"
    assert found[5].text == "again (3 times)"
    assert [moment.is_warning for moment in found] == [False] * 4 + [True, True, False, True, True]


def test_phase_with_an_event_is_shown_once() -> None:
    event = {"reason": "Running", "message": "all ready", "lastTimestamp": "2026-11-15T12:02:01Z", "metadata": {}}
    found = timeline(run_body(status={"phase": "Running", "runningTime": "2026-11-15T12:02:00Z"}), [event], [])
    assert [moment.title for moment in found] == ["Created", "Running"]


def test_samples_of_the_status_make_a_curve_until_a_history_is_kept() -> None:
    body = run_body(status={"history": [{"step": 1, "rewardMean": 0.1}, {"step": 9, "rewardMean": 0.4}]})
    assert history_parts(body, History())["series"] == {"steps": [1, 9], "figures": {"rewardMean": [0.1, 0.4]}}
    kept = Series(steps=(1, 2), figures={"loss": (0.5, 0.4)})
    assert history_parts(body, History(series=kept))["series"] == kept


def test_manifest_can_be_applied_again() -> None:
    body = run_body()
    body["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    assert manifest(body)["metadata"] == {"name": "r", "namespace": "ns"}
    assert "status" not in manifest(body)


def test_parts_of_a_new_run() -> None:
    parts = run_parts(run_body(), History(), [])
    assert parts["run"]["message"] == "Waiting for the operator."
    assert parts["components"] == []
    assert "training:" in parts["settings"]["manifest"]


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", ""])
def test_link_to_a_tracker_leads_to_web_pages_only(url: str) -> None:
    assert run_parts(run_body(status={"wandbUrl": url}), History(), [])["run"]["wandb"] == ""


def test_commands_name_the_run_and_its_namespace() -> None:
    assert {"title": "Print its logs", "command": "clotho run logs r -n ns"} in commands(run_body())


def test_differing_settings_come_first() -> None:
    others = [run_body(training={"steps": 100, "batchSize": 8}), run_body(training={"steps": 100, "batchSize": 16})]
    found = compared_settings(others)
    assert found["different"] == [{"setting": "training.batchSize", "values": [8, 16]}]
    assert {"setting": "training.steps", "value": 100} in found["same"]


def test_environment_shows_what_it_sets_itself() -> None:
    fields = [{"name": "group_size", "type": "integer", "default": 8, "minimum": 2}]
    ready = {"type": "Ready", "status": "True"}
    body = {
        "metadata": {"name": "gsm8k", "namespace": "ns"},
        "spec": {"config": {"group_size": 4}},
        "status": {"fields": fields, "conditions": [ready]},
    }
    view = environment_view(body)
    assert view["isReady"]
    assert view["entry"] == "gsm8k"
    (field,) = view["fields"]
    assert (field["default"], field["value"], field["limits"]) == (8, 4, {"minimum": 2})


def test_inference_test_has_its_models_and_the_best_of_them() -> None:
    status = {"phase": "Running", "models": [{"name": "m"}], "summary": {"bestModel": "m"}}
    view = inference_test_view({"metadata": {"name": "t"}, "spec": {"entry": "letters"}, "status": status})
    assert (view["environment"], view["models"], view["bestModel"]) == ("letters", [{"name": "m"}], "m")
