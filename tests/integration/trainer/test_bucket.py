"""Checkpoints in a bucket of a real S3 server: whole or absent, pruned, resumable; its refusals are sentences."""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clotho_contract.config import RunConfig, RunIdentity
from clotho_contract.progress import CopyInfo
from clotho_contract.settings import S3, Model, Training
from clotho_trainer import train
from clotho_trainer.failures import TrainerError
from clotho_trainer.training import bucket as buckets
from clotho_trainer.training import copying
from clotho_trainer.training.bucket import Bucket, BucketError
from clotho_trainer.training.checkpoints import Checkpoints, damage
from clotho_trainer.training.copying import Copier
from rig.s3_server import BUCKET, KEY, SECRET, S3Server, s3_server

WEIGHTS = 6 * 2**20  # more than one part of a multipart upload


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setenv(buckets.KEY, KEY)
    monkeypatch.setenv(buckets.SECRET, SECRET)
    with s3_server(tmp_path / "s3") as started:
        yield started


def settings_of(server: S3Server) -> S3:
    return S3(bucket=BUCKET, prefix="team", endpoint=server.endpoint)


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


def config(server: S3Server, name: str, resume_from: str = "") -> RunConfig:
    return RunConfig(
        run=RunIdentity(name=name, namespace="lab", id="1a2b"),
        model=Model(name="some/model"),
        training=Training(steps=9),
        s3=settings_of(server),
        resume_from=resume_from,
    )


def bucket_of(run: RunConfig) -> Bucket:
    found = buckets.own_bucket(run)
    assert found is not None
    return found


def write(checkpoints: Checkpoints, step: int) -> None:
    def fill(folder: Path) -> None:
        (folder / "adapter").mkdir()
        (folder / "adapter" / "config.json").write_text("{}")
        (folder / "weights.bin").write_bytes(os.urandom(WEIGHTS))

    checkpoints.write(step, fill)


def test_checkpoints_are_copied_pruned_and_resumed_elsewhere(server: S3Server, tmp_path: Path) -> None:
    run = config(server, "first")
    bucket, checkpoints = bucket_of(run), Checkpoints(tmp_path / "here", 2, run.run.id)
    for step in (1, 2, 3):
        write(checkpoints, step)
        for each in checkpoints.own():
            bucket.copy(each)
        bucket.keep(step, checkpoints.keep)
    assert bucket.steps() == [2, 3]
    assert bucket.location == "s3://runs/team/lab/first-1a2b"

    away = tmp_path / "away"
    buckets.restore(config(server, "second", bucket.location), away, has_own=False)
    assert [folder.name for folder in away.iterdir()] == ["step-00000003"]
    assert damage(away / "step-00000003", 3) is None
    buckets.restore(run, tmp_path / "new-volume", has_own=False)
    assert (tmp_path / "new-volume" / "step-00000003").is_dir(), "its own copies, without resumeFrom"
    with pytest.raises(TrainerError, match="no whole checkpoint in s3://runs/nowhere"):
        buckets.restore(config(server, "third", "s3://runs/nowhere"), tmp_path / "none", has_own=False)


def test_half_copied_checkpoint_never_counts_and_is_continued(server: S3Server, tmp_path: Path) -> None:
    run = config(server, "first")
    bucket, checkpoints = bucket_of(run), Checkpoints(tmp_path / "here", 2, run.run.id)
    write(checkpoints, 1)
    (checkpoint,) = checkpoints.own()
    server.limit_files_to(2**20)
    with pytest.raises(BucketError, match=r"step.*1.*: the store"):
        bucket.copy(checkpoint)
    assert bucket.steps() == []
    copied = server.folder / "team/lab/first-1a2b/step-00000001/adapter/config.json"
    before = copied.stat().st_mtime_ns
    server.make_room()
    bucket.copy(checkpoint)
    assert bucket.steps() == [1]
    assert copied.stat().st_mtime_ns == before, "what was there is not copied again"


@pytest.mark.parametrize(
    ("secret", "name", "words"),
    [("wrong", "runs", "the credentials are refused"), ("secret", "absent", "the bucket does not exist")],
)
def test_refusals_are_sentences(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str, name: str, words: str
) -> None:
    monkeypatch.setenv(buckets.SECRET, secret)
    with pytest.raises(BucketError, match=f"bucket {name} at {server.endpoint}: .*{words}"):
        Bucket(settings_of(server), name, "x").steps()


async def test_copies_are_tried_again_until_they_succeed(server: S3Server, tmp_path: Path) -> None:
    server.folder.rmdir()
    run = config(server, "first")
    checkpoints = Checkpoints(tmp_path / "here", 2, run.run.id)
    write(checkpoints, 1)
    reports: list[CopyInfo] = []
    copier = Copier(bucket_of(run), checkpoints, reports.append, retry_seconds=0.1)
    wait_until("a problem", lambda: "does not exist" in reports[-1].problem)
    server.folder.mkdir()
    write(checkpoints, 2)
    copier.wake()
    await copier.drain(asyncio.Event())
    assert (reports[-1].step, reports[-1].problem) == (2, "")
    assert bucket_of(run).steps() == [1, 2]


GIVEN: dict[str, Any] = {"dataset": [{"prompt": "a>", "expected": "a"}] * 2, "rewards": [lambda *_: 1.0]}


def short_training(model: Path, s3: S3, steps: int, prefix: str, **more: str) -> dict[str, Any]:
    return {
        "model": {"name": str(model), "dtype": "float32"},
        "inline": {"groupSize": 2, "maxCompletionTokens": 4},
        "training": {"steps": steps, "batchSize": 4, "maxTokens": 64, "lora": {"rank": 4}},
        "s3": {**msgspec.to_builtins(s3), "prefix": prefix},
        **more,
    }


def test_a_training_is_resumed_from_the_bucket_in_another_place(server: S3Server, model: Path, tmp_path: Path) -> None:
    train(short_training(model, settings_of(server), 2, "first"), output=tmp_path / "here", **GIVEN)
    location = "s3://runs/first/local/local-local"
    again = short_training(model, settings_of(server), 3, "second", resumeFrom=location)
    result = train(again, output=tmp_path / "away", **GIVEN)
    assert [step["step"] for step in result.metrics] == [3]


def test_a_training_ends_with_its_weights_on_the_volume_when_the_bucket_is_full(
    server: S3Server, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(copying, "END_SECONDS", 0.5)
    server.limit_files_to(2**10)
    result = train(short_training(model, settings_of(server), 2, "full"), output=tmp_path / "here", **GIVEN)
    assert [step["step"] for step in result.metrics] == [1, 2]
    (written,) = (tmp_path / "here").rglob("step-00000002")
    assert damage(written, 2) is None
    assert re.search(r"was not copied to s3://runs/full/local/local-local: (bucket runs|the copy was not)", caplog.text)
    refused = re.compile(r"checkpoints are not copied, .*: bucket runs .*: the store")
    wait_until("the refusal of the store in the log", lambda: refused.search(caplog.text) is not None)
    assert Bucket(settings_of(server), "runs", "full/local/local-local").steps() == []


def test_a_training_with_refused_credentials_says_so_before_it_starts(
    server: S3Server, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(buckets.SECRET, "wrong")
    with pytest.raises(TrainerError, match=r"bucket runs at .*: the credentials are refused"):
        train(short_training(model, settings_of(server), 2, "refused"), output=tmp_path / "here", **GIVEN)
