"""The tools against a fake API: their answers, and errors that are answers too."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from clotho.agent.rate_limit import ANNOTATION
from clotho.agent.tools import SESSIONS, Settings, Toolbox
from clotho.api.history import KeptLog, log_data
from clotho.cluster.outcomes import Forbidden, Transient
from clotho.workspace import inference_tests
from rig.fake_api import NAMESPACE, FakeApi, described

NOW = datetime(2026, 11, 15, 14, 0, tzinfo=UTC)
BASE = {"model": {"name": "Qwen/Qwen3-8B"}, "training": {"steps": 100}, "environments": [{"name": "ignored"}]}
SESSION = "s"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def api() -> FakeApi:
    fake = FakeApi()
    fake.add("Environment", "echo", {"entry": "atropos:/environment/echo.py"}, described())
    fake.add("Environment", "sums", {"entry": "sums.py", "description": "Add."}, {"message": "being described"})
    return fake


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tools(api: FakeApi, clock: Clock) -> Toolbox:
    return Toolbox(api.workspace, Settings(base=BASE), clock)


def running(api: FakeApi, name: str = "echo-1", phase: str = "Running", **status: Any) -> None:
    spec = {**BASE, "environments": [{"name": "echo", "environmentName": "echo"}]}
    progress = {"step": 42, "totalSteps": 100, "percent": 42, "rewardMean": 0.5, "percentCorrect": 0.4}
    parts = {
        "trainer": {"name": "trainer", "state": "Ready", "ready": 1, "restarts": 2},
        "environments": [{"name": "echo", "state": "Starting", "replicas": 2}],
    }
    start = (NOW - timedelta(minutes=90)).isoformat()
    known = {"phase": phase, "progress": progress, "components": parts, "startTime": start, "message": "Training."}
    api.add("TrainingRun", name, spec, {**known, **status})


async def test_environments_are_listed_with_tips(tools: Toolbox) -> None:
    answer = await tools.list_environments()
    assert answer["count"] == 2
    assert answer["environments"][0] == {
        "name": "echo",
        "class_name": "Echo",
        "file_path": "/environment/echo.py",
        "description": "Say the word.",
        "ready": True,
        "message": "",
    }
    assert answer["environments"][1]["ready"] is False
    assert answer["tips"]


async def test_an_unknown_environment_names_those_that_there_are(tools: Toolbox) -> None:
    answer = await tools.select_environment(SESSION, "ecko")
    assert "did you mean echo?" in answer["error"]
    assert answer["available"] == ["echo", "sums"]


async def test_an_environment_that_is_not_described_cannot_be_selected(tools: Toolbox) -> None:
    answer = await tools.select_environment(SESSION, "sums")
    assert answer == {"error": "environment sums is not ready: being described"}


@pytest.mark.parametrize("tool", ["current_config", "start_training"])
async def test_nothing_works_before_a_selection(tools: Toolbox, tool: str) -> None:
    answer = await getattr(tools, tool)(SESSION)
    assert "rl_select_environment" in answer["error"]


async def test_config_shows_what_can_be_changed_and_what_is_locked(api: FakeApi, tools: Toolbox) -> None:
    api.add("TrainingPolicy", "lab", {"locked": {"training": {"learningRate": 4e-5}}})
    await tools.select_environment(SESSION, "echo")
    answer = await tools.current_config(SESSION)
    open_fields = {each["name"]: each for each in answer["configurable_fields"]}
    locked = {each["name"]: each["current_value"] for each in answer["locked_fields"]}
    assert open_fields["group_size"]["current_value"] == 16
    assert open_fields["group_size"]["minimum"] == 1
    assert open_fields["model.name"]["current_value"] == "Qwen/Qwen3-8B"
    assert open_fields["mode"]["choices"] == ["easy", "hard"]
    assert locked == {"rollout_server_url": None, "training.learningRate": 4e-5}
    (address,) = [each for each in answer["locked_fields"] if each["name"] == "rollout_server_url"]
    assert address["decided_by"] == "the address of its API server"
    assert answer["problems"] == []


async def test_edits_are_checked_at_once_and_belong_to_their_session(tools: Toolbox) -> None:
    for session in ("a", "b"):
        await tools.select_environment(session, "echo")
    answer = await tools.edit_config("a", "group_size", 32)
    assert answer["value"] == 32
    assert answer["config"]["group_size"] == 32
    assert (await tools.edit_config("a", "group_size", -1))["error"] == "group_size: -1 is below 1"
    other = {each["name"]: each for each in (await tools.current_config("b"))["configurable_fields"]}
    assert other["group_size"]["current_value"] == 16


async def test_an_edit_that_needs_another_has_problems(tools: Toolbox) -> None:
    await tools.select_environment(SESSION, "echo")
    answer = await tools.edit_config(SESSION, "training.batchSize", 40)
    assert any("multiple of group_size" in problem for problem in answer["problems"])
    refused = await tools.start_training(SESSION)
    assert "would not be accepted" in refused["error"]
    assert (await tools.edit_config(SESSION, "group_size", 8))["problems"] == []


async def test_a_run_is_started_as_it_was_edited(api: FakeApi, tools: Toolbox) -> None:
    await tools.select_environment(SESSION, "echo")
    await tools.edit_config(SESSION, "words", ["blue"])
    await tools.edit_config(SESSION, "tracking.wandb.project", "mine")
    await tools.edit_config(SESSION, "tracking.wandb.mode", "offline")
    answer = await tools.start_training(SESSION)
    name = answer["run_id"]
    run = await api.workspace.get("TrainingRun", name)
    assert name.startswith("echo-")
    assert run["spec"]["environments"][0]["config"] == {"group_size": 16, "words": ["blue"]}
    assert run["spec"]["model"] == BASE["model"]
    assert answer["status"] == "starting"
    assert answer["wandb_project"] == "mine"
    assert answer["wandb_run_name"] == f"echo-{NOW:%Y%m%d-%H%M%S}"
    assert name in answer["logs"]["trainer"]
    assert answer["config"]["training.steps"] == 100
    assert "rollout_server_url" not in answer["config"]


@pytest.mark.parametrize(("environments", "first"), [([{"name": "sums"}], "sums"), (None, "mine")])
async def test_the_name_in_weights_and_biases_is_the_trainers(
    api: FakeApi, tools: Toolbox, environments: list[dict[str, Any]] | None, first: str
) -> None:
    place = {"environments": environments} if environments else {"inline": {"dataset": {"path": "x.jsonl"}}}
    api.add("TrainingRun", "mine", {**place, "tracking": {"wandb": {"mode": "offline"}}})
    (run,) = (await tools.list_runs())["runs"]
    assert run["wandb_run_name"] == f"{first}-uidofmin"


async def test_locked_tracking_is_in_the_answer(api: FakeApi, tools: Toolbox) -> None:
    locked = {"tracking": {"wandb": {"project": "ours", "mode": "offline"}}}
    api.add("TrainingPolicy", "lab", {"locked": locked})
    await tools.select_environment(SESSION, "echo")
    assert (await tools.start_training(SESSION))["wandb_project"] == "ours"
    running(api, policy={"names": ["lab"], "locked": locked})
    assert (await tools.check_status("echo-1"))["wandb_project"] == "ours"


async def test_edited_replicas_are_kept_in_the_started_run(api: FakeApi, tools: Toolbox) -> None:
    await tools.select_environment(SESSION, "echo")
    await tools.edit_config(SESSION, "environment.replicas", 3)
    run = await api.workspace.get("TrainingRun", (await tools.start_training(SESSION))["run_id"])
    assert run["spec"]["environments"][0]["replicas"] == 3


async def test_a_policy_created_after_the_selection_applies(api: FakeApi, tools: Toolbox) -> None:
    await tools.select_environment(SESSION, "echo")
    api.add("TrainingPolicy", "late", {"limits": {"steps": 10}})
    assert "more than 10" in (await tools.start_training(SESSION))["error"]


async def test_status_has_the_numbers_and_the_processes(api: FakeApi, tools: Toolbox) -> None:
    running(api, wandbUrl="https://wandb.ai/x", restarts=2)
    answer = await tools.check_status("echo-1")
    assert answer["status"] == "running"
    assert answer["running_time_minutes"] == 90.0
    assert answer["metrics"] == {
        "step": 42,
        "reward_mean": 0.5,
        "percent_correct": 0.4,
        "eval_percent_correct": None,
        "loss": None,
    }
    assert answer["processes"]["trainer"] == {"state": "ready", "ready": "1/1", "restarts": 2, "last_exit": None}
    assert answer["processes"]["environment echo"]["state"] == "starting"
    assert answer["wandb_url"] is None, "the run does not report there"


async def test_evaluation_of_a_finished_run_is_read_from_its_status(api: FakeApi, tools: Toolbox) -> None:
    running(
        api,
        phase="Completed",
        evaluations=[{"figure": "loss", "value": 9}, {"figure": "eval/percent_correct", "value": 0.75}],
    )
    assert (await tools.check_status("echo-1"))["metrics"]["eval_percent_correct"] == 0.75


async def test_logs_of_pods_that_are_gone_are_those_that_were_kept(api: FakeApi, tools: Toolbox) -> None:
    running(api, phase="Completed")
    logs = [
        KeptLog(attempt=n, restarts=0, title="trainer", container="main", text=f"start {n}\nend {n}") for n in (1, 2)
    ]
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/echo-1-uidofech-logs"
    api.objects[path] = {"metadata": {"name": "x"}, "data": log_data(tuple(logs))}
    assert (await tools.logs("echo-1", "trainer", 1))["logs"] == {"trainer": "end 2"}


async def test_the_time_of_a_finished_run_stands_still(api: FakeApi, tools: Toolbox) -> None:
    running(api, phase="Completed", completionTime=(NOW - timedelta(minutes=30)).isoformat())
    assert (await tools.check_status("echo-1"))["running_time_minutes"] == 60.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'# HELP x y\nclotho_environment_evaluation{measure="percent_correct"} 62.5\n', 62.5),
        (b'clotho_environment_evaluation{measure="eval/percent_correct"} 0.5\n', 0.5),
        (b'clotho_environment_evaluation{measure="score_mean"} 0.5\n', None),
        (b'clotho_environment_evaluation{measure="percent_correct"} many\n', None),
        (None, None),
    ],
)
async def test_evaluation_is_read_from_the_metrics_of_the_environment(
    api: FakeApi, tools: Toolbox, text: bytes | None, expected: float | None
) -> None:
    running(api, components={"environments": [{"name": "echo", "state": "Ready", "ready": 1, "pod": "echo-0"}]})
    if text is not None:
        api.texts[f"/api/v1/namespaces/{NAMESPACE}/pods/echo-0:8003/proxy/metrics"] = text
    assert (await tools.check_status("echo-1"))["metrics"]["eval_percent_correct"] == expected


async def test_status_is_rate_limited_across_restarts(api: FakeApi, tools: Toolbox, clock: Clock) -> None:
    running(api)
    assert "status" in await tools.check_status("echo-1")
    clock.now += timedelta(minutes=10)
    another = Toolbox(api.workspace, Settings(), clock)
    answer = await another.check_status("echo-1")
    assert answer["rate_limited"] is True
    assert answer["next_check_in_seconds"] == 1200
    clock.now += timedelta(minutes=20)
    assert "status" in await another.check_status("echo-1")


@pytest.mark.parametrize(
    ("phase", "started", "waited", "is_limited"),
    [
        ("Starting", timedelta(hours=2), timedelta(minutes=1), False),
        ("Running", timedelta(minutes=3), timedelta(minutes=1), False),
        ("Running", timedelta(minutes=3), timedelta(seconds=55), True),
        ("Running", timedelta(hours=1), timedelta(minutes=1), True),
        ("Failed", timedelta(hours=1), timedelta(minutes=1), False),
    ],
)
async def test_the_first_minutes_and_the_end_of_a_run_are_not_hidden(
    api: FakeApi, tools: Toolbox, clock: Clock, phase: str, started: timedelta, waited: timedelta, is_limited: bool
) -> None:
    running(api, phase=phase, startTime=(NOW - started).isoformat())
    await tools.check_status("echo-1")
    clock.now += waited
    assert (await tools.check_status("echo-1")).get("rate_limited", False) is is_limited


@pytest.mark.parametrize(
    ("left", "words"), [(5, "in 5 s."), (119, "in 119 s."), (121, "in 3 minutes."), (1200, "in 20 minutes.")]
)
async def test_the_next_check_has_a_fitting_unit(
    api: FakeApi, tools: Toolbox, clock: Clock, left: int, words: str
) -> None:
    running(api)
    await tools.check_status("echo-1")
    clock.now += timedelta(seconds=1800 - left)
    assert (await tools.check_status("echo-1"))["message"].endswith(words)


async def test_logs_are_readable_and_never_rate_limited(api: FakeApi, tools: Toolbox) -> None:
    running(api)
    labels = {"clotho.dev/run": "echo-1", "app.kubernetes.io/component": "trainer"}
    for name in ("a", "b"):
        api.objects[f"{PODS}/{name}"] = {"metadata": {"name": name, "labels": labels}}
    line = b'{"time": "2026-11-15T12:00:01.250+00:00", "level": "info", "message": "step 3"}'
    api.texts[f"{PODS}/a/log"] = line + b"\nplain"
    for _ in range(2):
        answer = await tools.logs("echo-1", "trainer", 7)
        assert answer["logs"] == {"a": "11-15 12:00:01 INFO  step 3\nplain", "b": "(no log: not found)"}
    assert "no environment pod" in (await tools.logs("echo-1", "environment", 7))["error"]
    assert (await tools.logs("echo-2", "trainer", 7))["error"].endswith("not found; did you mean echo-1?")


async def test_one_of_two_concurrent_checks_is_rate_limited(
    api: FakeApi, tools: Toolbox, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(api)
    patch = api.patch

    async def another_is_faster(*request: Any, **params: str) -> Any:
        monkeypatch.setattr(api, "patch", patch)
        assert "status" in await Toolbox(api.workspace, Settings(), clock).check_status("echo-1")
        return await patch(*request, **params)

    monkeypatch.setattr(api, "patch", another_is_faster)
    assert (await tools.check_status("echo-1"))["rate_limited"] is True


async def test_a_failed_run_has_an_error(api: FakeApi, tools: Toolbox) -> None:
    running(api, phase="Failed", message="out of memory")
    assert (await tools.check_status("echo-1"))["error"] == "out of memory"


async def test_finished_runs_cannot_be_stopped(api: FakeApi, tools: Toolbox) -> None:
    running(api)
    assert (await tools.stop_training("echo-1"))["status"] == "stopping"
    assert (await api.workspace.get("TrainingRun", "echo-1"))["spec"]["stop"] is True
    running(api, "echo-2", phase="Completed")
    answer = await tools.stop_training("echo-2")
    assert answer["status"] == "completed"
    assert "is Completed and cannot be stopped" in answer["error"]


async def test_results_have_final_metrics_history_and_weights(api: FakeApi, tools: Toolbox) -> None:
    results = {"step": 100, "rewardMean": 0.9, "loss": 0.1, "claim": "c", "path": "/var/lib/clotho/checkpoints/100"}
    history = [{"step": step, "rewardMean": step / 10} for step in range(10)]
    running(api, phase="Completed", results=results, history=history)
    answer = await tools.results("echo-1")
    assert answer["final_metrics"]["reward_mean"] == 0.9
    assert len(answer["history"]) == 10
    assert answer["history"][3]["reward_mean"] == 0.3
    assert answer["weights"] == {"claim": "c", "path": "/var/lib/clotho/checkpoints/100"}
    assert answer["download"] == "clotho run download echo-1 --namespace lab"


async def test_runs_are_listed(api: FakeApi, tools: Toolbox) -> None:
    running(api)
    answer = await tools.list_runs()
    assert answer["count"] == 1
    assert answer["runs"][0]["run_id"] == "echo-1"
    assert answer["runs"][0]["environment"] == "echo"
    assert answer["runs"][0]["status"] == "running"


@pytest.mark.parametrize("tool", ["check_status", "stop_training", "results"])
async def test_an_unknown_run_is_an_answer(api: FakeApi, tools: Toolbox, tool: str) -> None:
    running(api)
    answer = await getattr(tools, tool)("absent")
    assert answer["error"].endswith("not found")
    assert answer["available"] == ["echo-1"]
    assert (await getattr(tools, tool)("eco-1"))["error"].endswith("; did you mean echo-1?")


@pytest.mark.parametrize("name", ["", "..", "../environments/echo", "a/status", "a?dryRun=All", "A b", "a" * 300])
async def test_invalid_names_are_refused_without_a_request(api: FakeApi, tools: Toolbox, name: str) -> None:
    for tool in (tools.check_status, tools.stop_training, tools.results):
        assert "not a valid name" in (await tool(name))["error"]
    assert all(request == f"list {api.workspace.folder('TrainingRun')}" for request in api.requests)


@pytest.mark.parametrize("refusal", [Transient("list x", "no answer"), Forbidden("list x", "no answer", 403)])
async def test_a_cluster_that_refuses_is_an_answer(api: FakeApi, tools: Toolbox, refusal: Exception) -> None:
    api.refusals["list"] = refusal  # type: ignore[assignment]
    assert await tools.list_runs() == {"error": "no answer"}
    assert await tools.list_environments() == {"error": "no answer"}


async def test_inference_is_tested_with_the_edited_config(
    api: FakeApi, tools: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_tests, "POLL_SECONDS", 0)
    await tools.select_environment(SESSION, "echo")
    await tools.edit_config(SESSION, "mode", "hard")
    heard: list[str] = []

    async def finish(message: str) -> None:
        heard.append(message)
        (path,) = [path for path in api.objects if "inferencetests" in path]
        models = [{"name": "some/model", "phase": "Completed", "stepsTested": 2, "completions": 8, "correct": 4}]
        models[0] |= {"accuracy": 0.5, "stepsWithCorrect": 2, "stepSuccessRate": 1.0}
        models[0] |= {"steps": [{"scores": [1.0, 0.0]}, {"scores": [0.5, 0.25]}]}
        summary = {"requested": 1, "tested": 1, "succeeded": 1, "bestModel": "some/model", "averageAccuracy": 0.5}
        status = {"phase": "Completed", "models": models, "summary": summary | {"environmentWorks": True}}
        api.objects[path]["status"] = status

    answer = await tools.test_inference(SESSION, 2, 4, ["some/model"], finish)
    (test,) = [body for path, body in api.objects.items() if "inferencetests" in path]
    assert test["spec"]["config"] == {"mode": "hard"}
    assert test["spec"]["models"][0]["size"] == "custom"
    assert test["spec"]["ttlSecondsAfterFinished"] == 86400
    assert heard == ["waiting for the operator"]
    assert answer["total_completions_per_model"] == 8
    assert answer["models_tested"][0]["accuracy"] == 0.5
    assert answer["models_tested"][0]["total_completions"] == 8
    assert answer["models_tested"][0]["steps"] == [
        {"step": 1, "scores": [1.0, 0.0], "correct": 1},
        {"step": 2, "scores": [0.5, 0.25], "correct": 2},
    ]
    assert answer["models_tested"][0]["output_file"].startswith(f"kubectl logs {test['metadata']['name']}")
    assert answer["summary"]["environment_works"] is answer["summary"]["environment_working"] is True
    assert answer["summary"]["avg_accuracy"] == 0.5


async def test_an_inference_test_without_its_secret_is_answered_at_once_and_deleted(
    api: FakeApi, tools: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_tests, "POLL_SECONDS", 0)
    await tools.select_environment(SESSION, "echo")

    async def wait(_: str) -> None:
        (path,) = [path for path in api.objects if "inferencetests" in path]
        message = "Waiting for Secret keys (secretName): it does not exist in this namespace."
        reason = {"type": "Reconciling", "status": "True", "reason": "WaitingForReferences", "message": message}
        api.objects[path]["status"] = {"phase": "Pending", "conditions": [reason]}

    answer = await tools.test_inference(SESSION, 2, 4, ["some/model"], wait)
    assert answer == {
        "error": "the test cannot start: waiting for Secret keys (secretName): it does not exist in this namespace."
    }
    assert await api.workspace.all("InferenceTest") == []


async def test_an_inference_test_that_takes_too_long_is_an_answer(
    api: FakeApi, tools: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_tests, "SLACK_SECONDS", 0.01 - Settings().test_timeout_seconds)
    await tools.select_environment(SESSION, "echo")

    async def hear(_: str) -> None:
        pass

    answer = await tools.test_inference(SESSION, 2, 4, ["some/model"], hear)
    (test,) = await api.workspace.all("InferenceTest")
    assert f"InferenceTest {test['metadata']['name']} continues" in answer["error"]
    assert answer["status"] == "pending"
    assert answer["total_completions_per_model"] == 8


async def test_selections_are_bounded(tools: Toolbox) -> None:
    for number in range(SESSIONS + 1):
        await tools.select_environment(str(number), "echo")
    assert "error" in await tools.current_config("0")
    assert "error" not in await tools.current_config("1")


async def test_answers_are_json(api: FakeApi, tools: Toolbox) -> None:
    running(api)
    await tools.select_environment(SESSION, "echo")
    for answer in (await tools.current_config(SESSION), await tools.check_status("echo-1"), await tools.list_runs()):
        assert msgspec.json.decode(msgspec.json.encode(answer)) == answer


@pytest.mark.parametrize("written", ["nonsense", "2026-11-15T13:59:00", "2030-01-01T00:00:00+00:00"])
async def test_an_invalid_last_check_annotation_is_ignored(api: FakeApi, tools: Toolbox, written: str) -> None:
    running(api)
    api.objects[f"{api.workspace.folder('TrainingRun')}/echo-1"]["metadata"]["annotations"] = {ANNOTATION: written}
    assert "status" in await tools.check_status("echo-1")
    assert NAMESPACE in api.requests[-1]
