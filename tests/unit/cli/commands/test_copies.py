"""Clone, restart, compare and delete: what becomes of a run afterwards."""

import argparse
from typing import Any

import msgspec
import pytest

from clotho.cli import arguments
from clotho.cli.commands import comparison, copies, deletion, runs, watching
from clotho.cli.commands.copies import next_name
from clotho.cli.failure import Exit, Failure
from rig.fake_api import NAMESPACE, FakeApi

SPEC: dict[str, Any] = {
    "model": {"name": "m"},
    "training": {"steps": 100, "batchSize": 8},
    "environments": [{"name": "echo", "config": {"group_size": 4}}],
}
CHECKPOINT = {"step": 40, "path": "/var/lib/clotho/checkpoints/step-00000040"}
CLAIM = "mine-uidofmin-trainer"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"


def options(*words: str) -> argparse.Namespace:
    return arguments.parse("clotho", ["run", *words])


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


async def spec_of(api: FakeApi, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = (await api.workspace.get("TrainingRun", name))["spec"]
    return spec


async def test_a_clone_has_the_same_settings_and_no_history(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.add("TrainingRun", "mine", {**SPEC, "stop": True, "storage": {"claimName": "old", "size": "1Gi"}})
    words = ["clone", "mine", "--set", "training.learningRate=1e-5", "--set", "group_size=2"]
    assert await copies.clone(options(*words), api.workspace) == Exit.OK
    assert await spec_of(api, "mine-2") == {
        **SPEC,
        "training": {**SPEC["training"], "learningRate": 1e-5},
        "environments": [{"name": "echo", "config": {"group_size": 2}}],
        "storage": {"size": "1Gi"},
    }
    printed = capsys.readouterr()
    assert "storage.claimName is not copied" in printed.err
    assert "next: clotho run watch mine-2" in printed.out


async def test_a_clone_that_is_not_valid_is_not_created(api: FakeApi) -> None:
    api.add("TrainingRun", "mine", SPEC)
    with pytest.raises(Failure) as failure:
        await copies.clone(options("clone", "mine", "--set", "training.batchSize=10"), api.workspace)
    assert "not a multiple of group_size 4" in str(failure.value)
    assert len(api.objects) == 1


async def test_a_restart_with_fewer_steps_than_its_checkpoint_has_is_refused(api: FakeApi) -> None:
    api.add("TrainingRun", "mine", SPEC, {"phase": "Failed", "checkpoint": CHECKPOINT})
    with pytest.raises(Failure) as failure:
        await copies.restart(options("restart", "mine", "--set", "training.steps=20"), api.workspace)
    assert "the checkpoint is of step 40; --set training.steps=60 trains 20 more" in str(failure.value)
    assert len(api.objects) == 1
    assert await copies.restart(options("restart", "mine", "--set", "training.steps=40"), api.workspace) == Exit.OK


@pytest.mark.parametrize("phase", ["Failed", "Stopped"])
async def test_a_restart_continues_on_the_claim_of_the_old_run(
    api: FakeApi, phase: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.add("TrainingRun", "mine", SPEC, {"phase": phase, "checkpoint": CHECKPOINT})
    assert await copies.restart(options("restart", "mine", "--name", "again"), api.workspace) == Exit.OK
    assert (await spec_of(api, "again"))["storage"] == {"claimName": CLAIM}
    assert f"continues from step 40 on claim {CLAIM}" in capsys.readouterr().err


async def test_a_restart_that_is_not_valid_prints_no_promise(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.add("TrainingRun", "mine", SPEC, {"phase": "Failed", "checkpoint": CHECKPOINT})
    with pytest.raises(Failure):
        await copies.restart(options("restart", "mine", "--set", "training.batchSize=10"), api.workspace)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("phase", "is_offered"), [("Failed", True), ("Stopped", True), ("Completed", False)])
@pytest.mark.parametrize("command", [runs.status, runs.results, watching.watch])
async def test_the_end_of_a_run_names_the_command_that_continues_it(
    api: FakeApi, command: Any, phase: str, is_offered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    api.add("TrainingRun", "mine", SPEC, {"phase": phase, "message": "It ended.", "checkpoint": CHECKPOINT})
    await command(options(command.__name__, "mine", "-n", "lab"), api.workspace)
    offered = "To continue from step 40: clotho run restart mine -n lab"
    assert (offered in capsys.readouterr().out) is is_offered


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"phase": "Running", "checkpoint": CHECKPOINT}, "is Running; only a Failed or Stopped run"),
        ({"phase": "Completed", "checkpoint": CHECKPOINT}, "to run it again: clotho run clone mine -n lab"),
        ({"phase": "Failed"}, "has no checkpoint; to start from the beginning: clotho run clone mine -n lab"),
    ],
)
async def test_runs_that_cannot_be_restarted_are_refused(api: FakeApi, status: dict[str, Any], message: str) -> None:
    api.add("TrainingRun", "mine", SPEC, status)
    with pytest.raises(Failure) as failure:
        await copies.restart(options("restart", "mine", "-n", "lab"), api.workspace)
    assert message in str(failure.value)
    assert failure.value.code is Exit.REFUSED


@pytest.mark.parametrize(
    ("name", "taken", "expected"),
    [
        ("a", {"a"}, "a-2"),
        ("a-2", {"a", "a-2", "a-3"}, "a-4"),
        ("gsm8k-12345678", set(), "gsm8k-12345678-2"),
        ("a" * 63, set(), "a" * 61 + "-2"),
    ],
)
def test_names_are_numbered(name: str, taken: set[str], expected: str) -> None:
    assert next_name(name, taken) == expected


async def test_a_deleted_run_keeps_its_claim(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.add("TrainingRun", "mine", SPEC, {"phase": "Failed", "checkpoint": CHECKPOINT})
    api.objects[f"{CLAIMS}/{CLAIM}"] = {"metadata": {"name": CLAIM}}
    assert await deletion.delete(options("delete", "mine"), api.workspace) == Exit.OK
    assert list(api.objects) == [f"{CLAIMS}/{CLAIM}"]
    assert f"kubectl delete pvc {CLAIM} -n lab" in capsys.readouterr().out


async def test_the_claim_is_deleted_on_request(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.add("TrainingRun", "mine", SPEC)
    api.objects[f"{CLAIMS}/{CLAIM}"] = {"metadata": {"name": CLAIM}}
    await deletion.delete(options("delete", "mine", "--with-claim", "-o", "json"), api.workspace)
    assert api.objects == {}
    assert msgspec.json.decode(capsys.readouterr().out) == {"run": "mine", "claim": CLAIM, "claimDeleted": True}


async def test_a_claim_that_another_run_continued_on_is_not_deleted(api: FakeApi) -> None:
    api.add("TrainingRun", "mine", SPEC, {"phase": "Failed", "checkpoint": CHECKPOINT})
    api.objects[f"{CLAIMS}/{CLAIM}"] = {"metadata": {"name": CLAIM}}
    await copies.restart(options("restart", "mine", "--name", "again"), api.workspace)
    before = dict(api.objects)
    with pytest.raises(Failure) as failure:
        await deletion.delete(options("delete", "mine", "--with-claim"), api.workspace)
    assert f"claim {CLAIM} of run mine is also used by again; nothing was deleted" in str(failure.value)
    assert (failure.value.code, api.objects) == (Exit.REFUSED, before)


async def test_a_claim_that_went_with_its_run_is_named(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.add("TrainingRun", "mine", SPEC)
    await deletion.delete(options("delete", "mine", "--with-claim"), api.workspace)
    assert f"claim {CLAIM} is gone with the run" in capsys.readouterr().out


async def test_a_claim_that_the_user_named_is_never_deleted(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.add("TrainingRun", "mine", {**SPEC, "storage": {"claimName": "shared"}})
    api.objects[f"{CLAIMS}/shared"] = {"metadata": {"name": "shared"}}
    await deletion.delete(options("delete", "mine", "--with-claim"), api.workspace)
    assert list(api.objects) == [f"{CLAIMS}/shared"]
    assert "no claim of its own" in capsys.readouterr().out


async def test_a_comparison_shows_results_and_what_differs(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    progress = {"step": 100, "totalSteps": 100, "percent": 100, "rewardMean": 0.9, "loss": 0.01}
    api.add("TrainingRun", "a", SPEC, {"phase": "Completed", "progress": progress})
    places = [{"name": "echo", "config": {"group_size": 2}}]
    api.add("TrainingRun", "b", {**SPEC, "environments": places, "restarts": {"limit": 1}, "stop": True})
    assert await comparison.compare(options("compare", "a", "b"), api.workspace) == Exit.OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["SETTING", "a", "b"]
    assert lines.index(["restarts.limit", "-", "1"]) < lines.index(["phase", "Completed", "Pending"])
    assert ["reward", "0.90", "-"] in lines
    assert ["environments.echo.config.group_size", "4", "2"] in lines
    assert not any(line[:1] in (["model.name"], ["stop"]) for line in lines)


async def test_one_run_cannot_be_compared(api: FakeApi) -> None:
    with pytest.raises(Failure) as failure:
        await comparison.compare(options("compare", "a", "a"), api.workspace)
    assert failure.value.code is Exit.USAGE
