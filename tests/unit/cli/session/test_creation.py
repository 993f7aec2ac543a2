"""A run is created with its ConfigMaps or not at all."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from clotho.cli import arguments
from clotho.cli.commands import runs, watching
from clotho.cli.failure import Exit, Failure
from clotho.cli.session.creation import create_run, next_step
from clotho.cluster.outcomes import Invalid
from rig.fake_api import NAMESPACE, FakeApi

MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
SPEC = {
    "model": {"name": "m"},
    "training": {"steps": 100, "batchSize": 8},
    "environments": [{"name": "echo", "config": {"group_size": 4}}],
}
RUN: dict[str, Any] = {"kind": "TrainingRun", "metadata": {"name": "mine", "labels": {"a": "b"}}, "spec": SPEC}


def files(text: str = "one", **metadata: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words", **metadata}, "data": {"a": text}}


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump_all([files(), RUN]))
    return path


def options(*words: str) -> argparse.Namespace:
    return arguments.parse("clotho", ["run", "start", *words])


async def test_the_config_maps_of_a_file_are_created_too(api: FakeApi, manifest: Path) -> None:
    assert await runs.start(options("-f", str(manifest)), api.workspace) == Exit.OK
    assert api.objects[f"{MAPS}/words"]["data"] == {"a": "one"}
    assert (await api.workspace.get("TrainingRun", "mine"))["metadata"]["labels"] == {"a": "b"}
    assert await runs.start(options("-f", str(manifest), "--name", "again"), api.workspace) == Exit.OK


@pytest.mark.parametrize("words", [[], ["--watch"]])
async def test_hints_name_the_namespace_of_the_file(
    api: FakeApi, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**RUN, "metadata": {"name": "mine", "namespace": api.workspace.namespace}}))
    ended = {"phase": "Completed", "message": "Done.", "results": {"step": 1, "path": "/step-1", "claim": "c"}}

    async def finished(*_: object) -> dict[str, object]:
        return {"status": ended}

    monkeypatch.setattr(watching, "_until_finished", finished)
    await runs.start(options("-f", str(file), *words), api.workspace)
    verb = "download" if words else "watch"
    assert f"clotho run {verb} mine -n {api.workspace.namespace}" in capsys.readouterr().out


async def test_a_refused_run_leaves_nothing_behind(api: FakeApi) -> None:
    folder = api.workspace.folder("TrainingRun")
    api.refusals[f"create {folder}"] = Invalid("create", "model.name is locked", 422, "Invalid")
    with pytest.raises(Invalid):
        await create_run(api.workspace, RUN, [files()])
    assert api.objects == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (files("two"), "ConfigMap words exists in namespace lab with other data"),
        (files(namespace="elsewhere"), "ConfigMap words is for another namespace than lab"),
    ],
)
async def test_other_config_maps_are_left_alone(api: FakeApi, given: dict[str, Any], message: str) -> None:
    await api.create(MAPS, files(), dict)
    with pytest.raises(Failure) as failure:
        await create_run(api.workspace, RUN, [given])
    assert message in str(failure.value)
    assert list(api.objects) == [f"{MAPS}/words"]
    assert api.objects[f"{MAPS}/words"]["data"] == {"a": "one"}


async def test_existing_run_is_not_replaced(api: FakeApi) -> None:
    await create_run(api.workspace, RUN)
    with pytest.raises(Failure) as failure:
        await create_run(api.workspace, RUN)
    assert failure.value.code is Exit.REFUSED
    assert "run mine already exists in namespace lab; choose another --name, or delete it" in str(failure.value)


async def test_a_dry_run_prints_what_can_be_applied(
    api: FakeApi, manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create = api.create

    async def like_a_server(path: str, body: Any, answer: type[Any], **params: str) -> Any:
        made = await create(path, body, answer, **params)
        made["metadata"] |= {"creationTimestamp": "2026-11-15T12:00:00Z", "managedFields": [{}], "generation": 1}
        return {**made, "status": {"phase": "Pending"}}

    monkeypatch.setattr(api, "create", like_a_server)
    run = {**RUN, "apiVersion": "clotho.dev/v1alpha1"}
    run["metadata"] = {**RUN["metadata"], "namespace": NAMESPACE}
    await runs.start(options("-f", str(manifest), "--dry-run"), api.workspace)
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [files(), run]
    await runs.start(options("-f", str(manifest), "--dry-run", "-o", "json"), api.workspace)
    assert msgspec.json.decode(capsys.readouterr().out) == {
        "apiVersion": "v1",
        "kind": "List",
        "items": [files(), run],
    }
    assert api.objects == {}


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], "clotho run watch mine"),
        (["-n", "lab"], "clotho run watch mine -n lab"),
        (
            ["--context", "my cluster", "--kubeconfig", "/k"],
            "clotho run watch mine --context 'my cluster' --kubeconfig /k",
        ),
    ],
)
def test_the_next_command_keeps_context_and_kubeconfig(words: list[str], command: str) -> None:
    given = options("-e", "echo", *words)
    assert next_step(given, "mine") == f"run mine is created; next: {command}"


async def test_the_namespace_of_a_file_is_in_the_next_command(
    api: FakeApi, manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = {**RUN, "metadata": {"name": "mine", "namespace": "inl"}}
    monkeypatch.setattr(runs, "read_run_and_maps", lambda _: (written, []))
    await runs.start(options("-f", str(manifest)), api.workspace)
    assert capsys.readouterr().out.endswith("next: clotho run watch mine -n inl\n")
