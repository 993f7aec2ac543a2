"""The commands with a fake API: what they print, what they write, and their exit codes."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from clotho.cli import arguments
from clotho.cli.__main__ import main
from clotho.cli.commands import check, environments, inference_tests, logs, mcp, policies, runs, watching
from clotho.cli.failure import Exit, Failure
from clotho.cli.session import lookup
from clotho.cli.session.connection import explain
from clotho.cluster.outcomes import Forbidden, Invalid, NotFound, Transient, Unauthorized
from clotho.workspace import log_lines
from rig.fake_api import NAMESPACE, READY, FakeApi, described

RUN = {
    "model": {"name": "m"},
    "training": {"steps": 100, "batchSize": 8},
    "environments": [{"name": "echo", "config": {"group_size": 4}}],
}


def options(*words: str) -> argparse.Namespace:
    return arguments.parse("clotho", words)


@pytest.fixture
def api() -> FakeApi:
    fake = FakeApi()
    fake.add("Environment", "echo", {"entry": "echo.py"}, described())
    return fake


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"kind": "TrainingRun", "metadata": {"name": "mine"}, "spec": RUN}))
    return path


async def test_run_is_started_from_a_file_with_changes(api: FakeApi, manifest: Path) -> None:
    words = ["--set", "training.batchSize=16", "--set", "mode=hard", "--steps", "7", "--name", "other"]
    assert await runs.start(options("run", "start", "-f", str(manifest), *words), api.workspace) == Exit.OK
    spec = (await api.workspace.get("TrainingRun", "other"))["spec"]
    assert spec["training"] == {"steps": 7, "batchSize": 16}
    assert spec["environments"][0]["config"] == {"group_size": 4, "mode": "hard"}


async def test_run_is_started_from_the_catalogue(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-e", "echo", "--model", "m", "--steps", "5", "--set", "group_size=8", "--name", "first"]
    assert await runs.start(options("run", "start", *words), api.workspace) == Exit.OK
    spec = (await api.workspace.get("TrainingRun", "first"))["spec"]
    assert spec["environments"] == [{"name": "echo", "environmentName": "echo", "config": {"group_size": 8}}]
    assert "next: clotho run watch first" in capsys.readouterr().out


async def test_a_dry_run_creates_nothing(api: FakeApi, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await runs.start(options("run", "start", "-f", str(manifest), "--dry-run"), api.workspace)
    assert yaml.safe_load(capsys.readouterr().out)["spec"] == RUN
    assert await api.workspace.all("TrainingRun") == []


@pytest.mark.parametrize(
    ("words", "printed", "code"),
    [
        (["-e", "ecko"], "did you mean echo?", Exit.NOT_FOUND),
        (["-e", "echo"], "the run needs --model and --steps", Exit.USAGE),
        (["-e", "echo", "--model", "m"], "the run needs --steps", Exit.USAGE),
        (["-e", "ecko"], "no environment 'ecko' in namespace lab", Exit.NOT_FOUND),
        (["-e", "echo", "--set", "group_size=x"], "is not of type integer", Exit.REFUSED),
        (["-e", "echo", "--set", "group_size"], "write it as FIELD=VALUE", Exit.USAGE),
        (["-e", "echo", "--set", "words=["], "not YAML", Exit.USAGE),
    ],
)
async def test_invalid_start_arguments_are_refused(api: FakeApi, words: list[str], printed: str, code: Exit) -> None:
    with pytest.raises(Failure) as failure:
        await runs.start(options("run", "start", *words), api.workspace)
    assert printed in str(failure.value)
    assert failure.value.code is code


@pytest.mark.parametrize("start", [["-e", "echo"], ["-f"]])
async def test_an_unknown_field_is_reported_with_the_nearest_or_all(
    api: FakeApi, manifest: Path, start: list[str]
) -> None:
    words = [*start, str(manifest)] if start == ["-f"] else [*start, "--model", "m", "--steps", "9"]
    with pytest.raises(Failure) as failure:
        await runs.start(options("run", "start", *words, "--set", "training.batchsize=16"), api.workspace)
    assert str(failure.value).endswith("did you mean training.batchSize?"), "the same but for a capital letter"
    with pytest.raises(Failure) as failure:
        await runs.start(options("run", "start", *words, "--set", "x.y=16"), api.workspace)
    _, *known = str(failure.value).split("\n")
    assert known[0].startswith("Known fields: ")
    assert {"training.batchSize,", "training.steps,"} <= set(" ".join(known).split())
    assert max(map(len, known)) <= 110


async def test_every_field_of_a_run_can_be_set_without_a_file(api: FakeApi) -> None:
    words = ["-e", "echo", "--model", "m", "--steps", "9", "--set", "group_size=8", "--name", "a"]
    template = ["--set", "trainer.template.spec.priorityClassName=low"]
    assert await runs.start(options("run", "start", *words, *template), api.workspace) == Exit.OK
    made = await api.workspace.get("TrainingRun", "a")
    assert made["spec"]["trainer"]["template"] == {"spec": {"priorityClassName": "low"}}
    with pytest.raises(Failure, match=r"spec\.trainer\.template: must be an object with fields, not 3"):
        await runs.start(options("run", "start", *words, "--set", "trainer.template=3"), api.workspace)
    with pytest.raises(Failure, match="there is no field environments"):
        await runs.start(options("run", "start", *words, "--set", "environments=3"), api.workspace)


async def test_an_unknown_environment_is_reported_with_the_known_ones(api: FakeApi) -> None:
    with pytest.raises(Failure) as failure:
        await inference_tests.test(options("test", "zzz"), api.workspace)
    assert str(failure.value).endswith("\nKnown environments: echo")
    assert failure.value.code is Exit.NOT_FOUND


def test_control_characters_in_errors_are_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "discover", "/dev/null", "--image", "i", "--write", "/nowhere/\x1b[2J"]) == Exit.USAGE
    assert "cannot write /nowhere/\ufffd[2J" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["--set", "training.batchsize=16"], "did you mean training.batchSize"),
        (["--set", "training.batchSize=10"], "not a multiple of group_size 4"),
        (
            ["--set", "training.learningRate=fast"],
            "run.yaml with --set: spec.training.learningRate: must be a number greater than 0",
        ),
    ],
)
async def test_invalid_run_files_are_refused(api: FakeApi, manifest: Path, words: list[str], printed: str) -> None:
    with pytest.raises(Failure) as failure:
        await runs.start(options("run", "start", "-f", str(manifest), *words), api.workspace)
    assert printed in str(failure.value)


def add_run(api: FakeApi, name: str = "mine", phase: str = "Running", **status: Any) -> None:
    progress = {"step": 50, "totalSteps": 100, "percent": 50, "rewardMean": 0.5, "tokensPerSecond": 4310.4}
    history = [{"step": step, "rewardMean": step / 50} for step in (0, 20, 50)]
    api.add("TrainingRun", name, RUN, {"phase": phase, "progress": progress, "history": history, **status})


async def test_runs_are_listed_in_a_table(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(api)
    await runs.list_all(options("run", "list"), api.workspace)
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "PHASE", "STEP", "REWARD", "TOK/S", "RESTARTS", "AGE"]
    assert row.split()[:6] == ["mine", "Running", "50/100", "0.50", "▁▄█", "4310"]


async def test_runs_are_listed_as_json_and_yaml(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(api)
    for output, read in (("json", msgspec.json.decode), ("yaml", yaml.safe_load)):
        await runs.list_all(options("run", "list", "-o", output), api.workspace)
        assert read(capsys.readouterr().out)[0]["metadata"]["name"] == "mine"


@pytest.mark.parametrize("command", ["status", "stop", "resume", "results"])
async def test_an_unknown_run_is_reported_with_the_nearest_name(api: FakeApi, command: str) -> None:
    add_run(api)
    with pytest.raises(Failure) as failure:
        await getattr(runs, command)(options("run", command, "mien"), api.workspace)
    assert failure.value.code is Exit.NOT_FOUND
    assert "did you mean mine?" in str(failure.value)


async def test_a_run_may_be_in_another_namespace(api: FakeApi) -> None:
    api.objects[f"/api/v1/namespaces/{NAMESPACE}"] = {"metadata": {"name": NAMESPACE}}
    with pytest.raises(Failure) as failure:
        await runs.status(options("run", "status", "letters"), api.workspace)
    assert str(failure.value) == "namespace lab has no runs; `clotho run list -A` lists those of all namespaces"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (runs.status, ["run", "status", "x"]),
        (runs.list_all, ["run", "list"]),
        (environments.describe, ["env", "describe", "x"]),
        (environments.list_all, ["env", "list"]),
        (inference_tests.test, ["test", "x"]),
    ],
)
async def test_a_namespace_that_does_not_exist_is_named(command: Any, words: list[str]) -> None:
    with pytest.raises(Failure) as failure:
        await command(options(*words), FakeApi().workspace)
    assert str(failure.value).startswith("namespace 'lab' does not exist")
    assert failure.value.code is Exit.NOT_FOUND


async def test_every_problem_of_a_start_is_reported_at_once(api: FakeApi) -> None:
    words = ["-e", "echo", "--set", "group_size=0", "--set", "mode=odd", "--set", "training.stps=3"]
    with pytest.raises(Failure) as failure:
        await runs.start(options("run", "start", *words), api.workspace)
    text = str(failure.value)
    assert "group_size: " in text
    assert "mode: " in text
    assert "did you mean training.steps" in text
    assert "the run needs --model and --steps" in text


async def test_stop_suspend_and_resume_change_the_spec(api: FakeApi) -> None:
    add_run(api)
    await runs.stop(options("run", "stop", "mine", "--suspend"), api.workspace)
    assert (await api.workspace.get("TrainingRun", "mine"))["spec"]["suspend"] is True
    add_run(api, phase="Suspended")
    await runs.resume(options("run", "resume", "mine"), api.workspace)
    assert (await api.workspace.get("TrainingRun", "mine"))["spec"]["suspend"] is False
    await runs.stop(options("run", "stop", "mine"), api.workspace)
    assert (await api.workspace.get("TrainingRun", "mine"))["spec"]["stop"] is True
    add_run(api, phase="Completed")
    with pytest.raises(Failure) as failure:
        await runs.stop(options("run", "stop", "mine"), api.workspace)
    assert failure.value.code is Exit.REFUSED
    assert "is Completed" in str(failure.value)


@pytest.mark.parametrize(("phase", "code"), [("Completed", 0), ("Failed", 1), ("Stopped", 1)])
async def test_watch_ends_with_the_run(api: FakeApi, phase: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    results = {"step": 100, "rewardMean": 0.97, "claim": "c", "path": "/var/lib/clotho/x"}
    add_run(api, phase=phase, results=results, message="All done.\x1b[2J")
    assert await watching.watch(options("run", "watch", "mine"), api.workspace) == code
    printed = capsys.readouterr().out
    assert f"{phase}: All done.\ufffd[2J  reward 0.50" in printed
    assert "/var/lib/clotho/x on claim c" in printed
    assert "\x1b" not in printed


async def test_an_interrupted_watch_leaves_the_run_alone(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(api)
    following = asyncio.create_task(watching.watch(options("run", "watch", "mine", "-n", "lab"), api.workspace))
    await asyncio.wait({following}, timeout=0.1)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert "run mine continues; to stop it: clotho run stop mine -n lab" in capsys.readouterr().err


async def test_watch_waits_out_a_cluster_that_does_not_answer(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    add_run(api, phase="Completed")
    api.refusals["get"] = Transient("get x", "connection refused")
    monkeypatch.setattr(lookup, "RETRY_SECONDS", 0.01)
    following = asyncio.create_task(watching.watch(options("run", "watch", "mine"), api.workspace))
    await asyncio.wait({following}, timeout=0.1)
    assert not following.done()
    assert len(api.requests) > 1
    api.refusals.clear()
    assert await following == Exit.OK


async def test_watch_does_not_wait_for_ever(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.refusals["get"] = Transient("get x", "connection refused")
    monkeypatch.setattr(lookup, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(lookup, "LIMIT_SECONDS", 0.02)
    with pytest.raises(Transient):
        await watching.watch(options("run", "watch", "mine", "--timeout", "5"), api.workspace)
    assert len(api.requests) > 1


async def test_a_status_in_a_pipe_is_whole(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    message = "Waiting for a node with 1 nvidia.com/gpu: " + "0/3 nodes are available. " * 9
    missing = {"type": "APIServerReady", "status": "False", "reason": "Missing", "message": ""}
    add_run(api, phase="Stopped", message=message, conditions=[missing], checkpoint={"step": 57, "path": "x"})
    await runs.status(options("run", "status", "mine"), api.workspace)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == message.strip()
    assert "  APIServerReady=False  Missing" in printed
    await runs.list_all(options("run", "list"), api.workspace)
    assert " 57/100 " in capsys.readouterr().out


async def test_results_before_the_end_are_marked(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(api)
    await runs.results(options("run", "results", "mine", "-o", "json"), api.workspace)
    printed = capsys.readouterr()
    assert msgspec.json.decode(printed.out)["progress"]["step"] == 50
    assert "not final" in printed.err


async def test_environment_fields_are_listed_in_a_table(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    await environments.describe(options("env", "describe", "echo"), api.workspace)
    printed = capsys.readouterr().out
    assert ["group_size", "integer", "16", "≥", "1", "Attempts", "at", "each", "item."] in [
        line.split() for line in printed.splitlines()
    ]
    assert "(the address of its API server)" in printed, "and not the environment's default"
    await environments.list_all(options("env", "list"), api.workspace)
    assert ["echo", "True", "Echo", "Say", "the", "word."] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


async def test_values_set_in_an_environment_are_shown_as_defaults(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.add("Environment", "wide", {"entry": "echo.py", "config": {"group_size": 8}}, described())
    await environments.describe(options("env", "describe", "wide"), api.workspace)
    assert ["group_size", "integer", "8"] in [line.split()[:3] for line in capsys.readouterr().out.splitlines()]


async def test_the_reason_of_an_environment_that_is_not_ready_is_listed(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "The environment cannot be imported: ModuleNotFoundError: No module named 'latex2sympy'."
    api.add("Environment", "broken", {}, {"message": why, "conditions": [READY | {"status": "False"}]})
    api.add("Environment", "new", {})
    await environments.list_all(options("env", "list"), api.workspace)
    header, broken, echo, new = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "READY", "CLASS", "DESCRIPTION", "MESSAGE"]
    assert broken.split() == ["broken", "False", *why.split()]
    assert echo.endswith("Say the word.")
    assert new.endswith("Not described by the operator yet.")
    monkeypatch.setattr(environments, "page_width", lambda: 60)
    await environments.list_all(options("env", "list"), api.workspace)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].endswith("The environment cann…")


async def test_policies_are_explained_as_one(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await policies.explain(options("policy", "explain"), api.workspace) == Exit.OK
    assert "nothing is locked" in capsys.readouterr().out
    api.add("TrainingPolicy", "a", {"locked": {"training": {"steps": 2500}}, "limits": {"gpus": 8, "egress": []}})
    api.add("TrainingPolicy", "b", {"locked": {"environmentConfig": {"use_wandb": True}}, "limits": {"gpus": 2}})
    await policies.explain(options("policy", "explain"), api.workspace)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["training.steps", "2500"] in printed
    assert ["(environment)", "use_wandb", "true"] in printed
    assert ["GPUs", "per", "trainer", "2"] in printed
    assert ["egress", "(none)"] in printed


async def test_contradictory_policies_have_an_exit_code(api: FakeApi) -> None:
    api.add("TrainingPolicy", "a", {"locked": {"training": {"steps": 1}}})
    api.add("TrainingPolicy", "b", {"locked": {"training": {"steps": 2}}})
    assert await policies.explain(options("policy", "explain"), api.workspace) == Exit.UNSUCCESSFUL


@pytest.mark.parametrize(
    ("command", "words"), [(runs.list_all, ["run", "list"]), (environments.describe, ["env", "describe", "echo"])]
)
async def test_tables_fit_the_terminal(
    api: FakeApi, command: Any, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(api)
    for module in (runs, environments):
        monkeypatch.setattr(module, "page_width", lambda: 60)
    await command(options(*words), api.workspace)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


async def test_logs_need_pods(api: FakeApi) -> None:
    add_run(api)
    with pytest.raises(Failure) as failure:
        await logs.logs(options("run", "logs", "mine", "-c", "trainer"), api.workspace)
    assert "no trainer pod" in str(failure.value)


async def test_log_lines_name_their_component_without_control_characters(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(api)
    for name, labels in (
        ("a", {"app.kubernetes.io/component": "trainer"}),
        (
            "b",
            {"app.kubernetes.io/component": "environment", "clotho.dev/environment": "echo", "clotho.dev/index": "1"},
        ),
    ):
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
        api.objects[path] = {"metadata": {"name": name, "labels": {**labels, "clotho.dev/run": "mine"}}}
        api.texts[f"{path}/log"] = b"one\ntwo \x1b[2J"
    assert await logs.logs(options("run", "logs", "mine"), api.workspace) == Exit.OK
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["trainer  one", "trainer  two \ufffd[2J", "echo-1  one", "echo-1  two \ufffd[2J"]


def test_a_log_line_with_all_metrics_of_a_step_is_short() -> None:
    metrics = {f"metric/{number}": number for number in range(30)}
    line = {"time": "2026-11-16T09:50:06Z", "level": "info", "message": "step 20 of 120: reward 0.354"}
    assert log_lines.readable(msgspec.json.encode(line | {"step": 20}).decode()) == [
        "11-16 09:50:06 INFO  step 20 of 120: reward 0.354  step=20"
    ]
    assert log_lines.readable(msgspec.json.encode(line | metrics).decode()) == [
        "11-16 09:50:06 INFO  step 20 of 120: reward 0.354  (30 fields)"
    ]


@pytest.mark.parametrize("line", ['{"message": ' + "[" * 10_000, "{"])
def test_log_lines_that_cannot_be_decoded_are_shown_as_they_are(line: str) -> None:
    assert log_lines.readable(line) == [line]
    assert msgspec.json.decode(log_lines.as_json("trainer", line)) == {"component": "trainer", "message": line}


async def test_check_lists_what_is_missing_and_how_to_get_it(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.objects["/version"] = {"gitVersion": "v1.36.3"}
    assert await check.check_cluster(options("check"), api.workspace) == Exit.UNSUCCESSFUL
    printed = capsys.readouterr().out
    assert "Kubernetes v1.36.3" in printed
    assert "MISSING custom resources: environments" in printed
    assert "MISSING operator: none in namespace clotho-system" in printed
    assert f"kubectl create namespace {NAMESPACE}" in printed
    assert "--from-file=WANDB_API_KEY=FILE" in printed


def test_check_without_a_kubeconfig_names_it_as_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--kubeconfig", str(tmp_path / "none")]) == Exit.UNSUCCESSFUL
    python, cluster, fix = capsys.readouterr().out.splitlines()
    assert python.startswith("ok      Python: ")
    assert cluster.startswith(f"MISSING cluster: cannot read {tmp_path / 'none'}: No such file")
    assert "make demo" in fix


async def test_check_never_shows_a_key(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.objects["/version"] = {}
    api.objects[f"/api/v1/namespaces/{NAMESPACE}/secrets/wandb"] = {"data": {"WANDB_API_KEY": "c2VjcmV0"}}
    await check.check_cluster(options("check", "-o", "json"), api.workspace)
    printed = capsys.readouterr()
    findings = {each["what"]: each for each in msgspec.json.decode(printed.out)}
    assert findings["WANDB_API_KEY"]["state"] == "ok"
    assert "c2VjcmV0" not in printed.out + printed.err


def test_an_old_python_version_is_reported_as_missing() -> None:
    assert check.python_finding((3, 10, 4)).state == "missing"
    assert check.python_finding((3, 11, 0)).state == "ok"


LOCKED = (
    "trainingruns.clotho.dev \"x\" is forbidden: ValidatingAdmissionPolicy 'clotho' with binding 'clotho' "
    "denied request: training.steps: 9 is not allowed, it is locked to 5"
)


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (Transient("get x", "refused"), Exit.UNREACHABLE, "does not answer"),
        (Unauthorized("get x", "no", 401), Exit.REFUSED, "log in again"),
        (Forbidden("get x", "user may not", 403), Exit.REFUSED, "clotho check"),
        (Forbidden("create x", LOCKED, 403), Exit.REFUSED, "locked to 5; `clotho policy explain` shows"),
        (Forbidden("create x", LOCKED.replace("'clotho'", "'other'"), 403), Exit.REFUSED, "'other' with"),
        (NotFound("list x", "404 page not found", 404), Exit.NOT_FOUND, "not installed"),
        (NotFound("get x", "the server could not find the requested resource", 404), Exit.NOT_FOUND, "not installed"),
        (NotFound("get x", 'trainingruns "x" not found', 404), Exit.NOT_FOUND, '"x" not found'),
        (NotFound("create x", 'namespaces "x" not found', 404), Exit.NOT_FOUND, "namespace 'x' does not exist"),
        (Invalid("create x", "training.steps: locked", 422), Exit.REFUSED, "locked"),
    ],
)
def test_errors_of_the_cluster_have_exit_codes(error: Any, code: Exit, printed: str) -> None:
    failure = explain(error)
    assert failure.code is code
    assert printed in str(failure)


def test_suggested_commands_name_the_namespace() -> None:
    assert "`clotho check -n lab`" in str(explain(Forbidden("get x", "user may not", 403), "lab"))
    assert "`clotho check -n lab`" in str(explain(NotFound("list x", "404 page not found", 404), "lab"))
    assert "`clotho policy explain -n lab`" in str(explain(Forbidden("create x", LOCKED, 403), "lab"))


@pytest.mark.parametrize("content", [b"# Clotho\n\ntext: [", b"kind: Pod", b"text", b"\xb3\xff"])
def test_file_that_is_no_kubeconfig_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "junk").write_bytes(content)
    assert main(["run", "list", "--kubeconfig", str(tmp_path / "junk")]) == Exit.UNREACHABLE
    printed = capsys.readouterr().err
    assert f"{tmp_path}/junk is not a kubeconfig: " in printed
    assert printed.count("\n") == 1


async def test_missing_agent_dependencies_are_reported_with_the_install_command(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "clotho.agent.server", None)
    with pytest.raises(Failure) as failure:
        await mcp.serve(options("mcp"), api.workspace)
    assert str(failure.value).endswith("in a clone of Clotho: pip install '.[agent]'")
