"""A checkpoint is downloaded as a tar stream, completely or with an error; its pod is always deleted."""

from __future__ import annotations

import argparse
import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clotho.cli import arguments
from clotho.cli.commands import download
from clotho.cli.failure import Exit, Failure
from clotho.cli.session import copying as copying_files
from rig.fake_api import NAMESPACE, FakeApi

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
TRAINER = {
    "metadata": {"name": "t", "labels": {"clotho.dev/run": "mine", "app.kubernetes.io/component": "trainer"}},
    "spec": {"containers": [{"name": "main", "image": "registry/trainer:1", "imagePullPolicy": "Never"}]},
}
WELL = b'\x03{"status": "Success"}'


def tar(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def sent(data: bytes, size: int = 1000) -> list[bytes]:
    return [b"\x01" + data[start : start + size] for start in range(0, len(data), size)]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()
    checkpoint = {"step": 7, "path": "/var/lib/clotho/checkpoints/7"}
    fake.add("TrainingRun", "mine", {"training": {"steps": 9}}, {"phase": "Running", "checkpoint": checkpoint})
    fake.objects[f"{PODS}/t"] = TRAINER
    create = fake.create

    async def runs_at_once(path: str, body: Any, answer: type[Any], **params: str) -> Any:
        made = await create(path, body, answer, **params)
        made["status"] = {"phase": "Running"}
        return made

    monkeypatch.setattr(fake, "create", runs_at_once)
    return fake


def options(*words: str) -> argparse.Namespace:
    return arguments.parse("clotho", ["run", "download", "mine", *words])


def copying_pods(api: FakeApi) -> list[str]:
    return [path for path in api.objects if "-download-" in path]


async def test_list_shows_path_and_claim_of_the_weights(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await download.download(options("--list"), api.workspace) == Exit.OK
    assert "/var/lib/clotho/checkpoints/7 on claim mine-uidofmin-trainer" in capsys.readouterr().out
    assert copying_pods(api) == []


async def test_files_are_downloaded_and_the_pod_is_deleted(api: FakeApi, tmp_path: Path) -> None:
    weights = bytes(range(256)) * 500
    api.channels = [b"\x01", b"\x02", b"\x03", b"\x02a word", *sent(tar(adapter=weights, deep__er=b"x")), WELL]
    target = tmp_path / "weights"
    assert await download.download(options("--to", str(target)), api.workspace) == Exit.OK
    assert (target / "adapter").read_bytes() == weights
    assert (target / "deep" / "er").read_bytes() == b"x"
    assert copying_pods(api) == []
    assert any(
        "tar -C /var/lib/clotho/checkpoints/7 --exclude=./optimizer.pt --exclude=./state.pt -cf - ." in request
        for request in api.requests
    )


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ([b"\x02no such file", b'\x03{"status": "Failure", "message": "exit code 2"}'], "no such file"),
        ([*sent(tar(adapter=b"x" * 9000))[:3]], "the copy is incomplete; delete "),
        ([*sent(tar(**{"..__outside": b"x"})), WELL], "outside"),
        ([*sent(b"nonsense" * 100_000), WELL], "the copy is incomplete; delete "),
    ],
)
async def test_a_failed_copy_is_an_error_and_its_pod_is_deleted(
    api: FakeApi, tmp_path: Path, channels: list[bytes], message: str
) -> None:
    api.channels = channels
    with pytest.raises(Failure) as failure:
        await download.download(options("--to", str(tmp_path / "weights")), api.workspace)
    assert message in str(failure.value)
    assert copying_pods(api) == []
    assert not (tmp_path / "outside").exists()


async def test_an_interrupted_copy_is_called_incomplete_and_its_pod_is_deleted(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_copying = asyncio.Event()

    @asynccontextmanager
    async def endless(*_: Any) -> AsyncIterator[AsyncIterator[Any]]:
        async def messages() -> AsyncIterator[Any]:
            is_copying.set()
            await asyncio.Event().wait()
            yield

        yield messages()

    monkeypatch.setattr(api, "open_channels", endless)
    copying = asyncio.create_task(download.download(options("--to", str(tmp_path / "weights")), api.workspace))
    await is_copying.wait()
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert f"the copy is incomplete; delete {tmp_path / 'weights'} before you try again" in capsys.readouterr().err
    assert copying_pods(api) == []


async def test_what_the_copying_pod_waits_for_is_shown(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image: tra"}}}
    create = api.create

    async def cannot_start(path: str, body: Any, answer: type[Any], **params: str) -> Any:
        made = await create(path, body, answer, **params)
        made["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
        return made

    monkeypatch.setattr(api, "create", cannot_start)
    monkeypatch.setattr(copying_files, "START_SECONDS", 0.1)
    with pytest.raises(Failure):
        await download.download(options("--to", str(tmp_path / "weights")), api.workspace)
    assert capsys.readouterr().err == "waiting for the copying pod: no such image: tra\n"


@pytest.mark.parametrize(
    ("status", "spec", "message"),
    [
        ({}, {}, "run mine has no checkpoint yet"),
        ({"phase": "Failed"}, {}, "run mine has no checkpoint"),
        ({"checkpoint": {"step": 1, "path": "/tmp/x"}}, {}, "is not on the claim"),
        ({"checkpoint": {"step": 1, "path": "/var/lib/clotho/1"}}, {"storage": {"ephemeral": True}}, "ephemeral"),
    ],
)
async def test_download_without_results_is_refused_with_the_reason(
    api: FakeApi, status: dict[str, Any], spec: dict[str, Any], message: str
) -> None:
    api.add("TrainingRun", "mine", spec, status)
    with pytest.raises(Failure) as failure:
        await download.download(options("--list"), api.workspace)
    assert message in str(failure.value)
    assert status.get("phase") != "Failed" or "yet" not in str(failure.value)


async def test_without_the_trainers_pod_an_image_is_needed(api: FakeApi, tmp_path: Path) -> None:
    del api.objects[f"{PODS}/t"]
    with pytest.raises(Failure) as failure:
        await download.download(options("--to", str(tmp_path / "x")), api.workspace)
    assert "--image" in str(failure.value)


@pytest.mark.parametrize(
    ("phases", "node"),
    [(["Running"], "node-0"), (["Pending"], "node-0"), (["Succeeded"], None), (["Failed", "Running"], "node-1")],
)
async def test_a_claim_in_use_is_mounted_where_the_trainer_is(
    api: FakeApi, tmp_path: Path, phases: list[str], node: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del api.objects[f"{PODS}/t"]
    for number, phase in enumerate(phases):
        spec = {**TRAINER["spec"], "nodeName": f"node-{number}"}
        api.objects[f"{PODS}/t-{number}"] = {**TRAINER, "spec": spec, "status": {"phase": phase}}
    made: list[dict[str, Any]] = []
    create = api.create

    async def remember(path: str, body: Any, answer: type[Any], **params: str) -> Any:
        made.append(body)
        return await create(path, body, answer, **params)

    monkeypatch.setattr(api, "create", remember)
    api.channels = [*sent(tar(adapter=b"x")), WELL]
    await download.download(options("--to", str(tmp_path / "weights")), api.workspace)
    terms = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert made[0]["spec"].get("affinity") == (required if node else None)


async def test_a_folder_with_something_in_it_is_left_alone(api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(Failure) as failure:
        await download.download(options("--to", str(tmp_path)), api.workspace)
    assert "already exists; choose an empty or new directory" in str(failure.value)


EXPORT = {
    "phase": "Completed",
    "folder": "/var/lib/clotho/export",
    "bytes": 4_200_000,
    "files": [{"path": "model-q8_0.gguf", "bytes": 4_200_000, "sha256": "x"}],
}


async def test_the_model_is_what_was_exported(api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = {"step": 9, "path": "/var/lib/clotho/checkpoints/9"}
    api.add("TrainingRun", "mine", {"training": {"steps": 9}}, {"export": EXPORT, "checkpoint": checkpoint})
    assert await download.download(options("--list", "-n", "lab"), api.workspace) == Exit.OK
    message = capsys.readouterr().out
    assert "model-q8_0.gguf  4.2 MB" in message
    assert "clotho run download mine --what model -n lab" in message
    api.channels = [*sent(tar(gguf=b"x" * 1500)), WELL]
    assert await download.download(options("--to", str(tmp_path / "m")), api.workspace) == Exit.OK
    assert any("tar -C /var/lib/clotho/export -cf - ." in request for request in api.requests)
    assert "1.5 kB" in capsys.readouterr().out


async def test_a_checkpoint_to_continue_from_is_whole(api: FakeApi, tmp_path: Path) -> None:
    api.channels = [*sent(tar(optimizer=b"x")), WELL]
    words = ["--what", "checkpoint", "--to", str(tmp_path / "c")]
    assert await download.download(options(*words), api.workspace) == Exit.OK
    assert any("tar -C /var/lib/clotho/checkpoints/7 -cf - ." in request for request in api.requests)


async def test_default_target_is_a_directory_named_after_the_run(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    api.channels = [*sent(tar(adapter=b"x")), WELL]
    assert await download.download(options(), api.workspace) == Exit.OK
    assert (tmp_path / "mine" / "adapter").read_bytes() == b"x"


async def test_metrics_need_no_pod(api: FakeApi, tmp_path: Path) -> None:
    history = [{"step": 1, "rewardMean": 0.5}]
    api.add("TrainingRun", "mine", {"training": {"steps": 9}}, {"phase": "Running", "history": history})
    assert await download.download(options("--what", "metrics", "--to", str(tmp_path / "m")), api.workspace) == Exit.OK
    assert msgspec.json.decode((tmp_path / "m" / "metrics.json").read_bytes())["history"] == history
    assert not any(request.startswith("create") for request in api.requests)


async def test_logs_are_a_file_for_each_pod(api: FakeApi, tmp_path: Path) -> None:
    api.texts[f"{PODS}/t/log"] = b"one\ntwo"
    assert await download.download(options("--what", "logs", "--to", str(tmp_path / "l")), api.workspace) == Exit.OK
    assert (tmp_path / "l" / "t.log").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("status", "path"), [({}, "/var/lib/clotho/checkpoints/step-9"), ({"export": EXPORT}, "/var/lib/clotho/export")]
)
def test_trainers_image_of_the_status_is_used_once_its_pod_is_gone(status: dict[str, Any], path: str) -> None:
    components = {"trainer": {"name": "trainer", "state": "Stopped", "image": "trainer:1"}}
    checkpoint = {"step": 9, "path": "/var/lib/clotho/checkpoints/step-9"}
    run = {
        "metadata": {"name": "r", "uid": "0123abcd-0000-4000-8000-000000000000", "namespace": "ns"},
        "spec": {},
        "status": {"components": components, "checkpoint": checkpoint, **status},
    }
    source = download.model_source(run)
    assert (source.path, source.image) == (path, "trainer:1")
    assert download.checkpoint_source(run).image == "trainer:1"
    del components["trainer"]["image"]
    assert download.model_source(run).image == ""
