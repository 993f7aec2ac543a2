"""Checkpoints in an S3-compatible bucket. A half-copied one never counts: its manifest is written last."""

import os
import re
import shutil
from collections.abc import Iterator, Set
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from clotho_contract import untrusted
from clotho_contract.config import RunConfig
from clotho_contract.settings import S3
from clotho_trainer.failures import TrainerError
from clotho_trainer.training.checkpoints import MANIFEST, STAGING, Manifest, Saved, damage, folder_name, saved_in

KEY, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_COPYING = "copying.json"  # the manifest of a checkpoint that is being copied
_FOLDER = re.compile(r"step-(\d+)/")
_LOCATION = re.compile(r"s3://([^/]+)/?(.*)")
_EXPLANATIONS = {
    ("NoSuchBucket",): "the bucket does not exist; create it, or correct storage.s3.bucket",
    ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403 Forbidden"): "the credentials are refused; "
    f"check {KEY} and {SECRET} in the Secret of storage.s3",
    ("QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "507 Insufficient"): "the store is full; make room, "
    "and the copy continues",
    ("error sending request", "error trying to connect", "dns error"): "the store does not answer; check "
    "storage.s3.endpoint and the network",
}
_PIECE = 8 * 2**20  # bytes of a download that are held in memory
_CONNECT_SECONDS, _REQUEST_SECONDS, _DOWNLOAD_SECONDS = 10, 120, 6 * 3600  # a large file is one request
_RETRY_SECONDS, _RETRIES = 30, 2


class BucketError(Exception):
    """What the store refused, as one sentence."""


class Bucket:
    """One folder of a bucket: that of a run."""

    def __init__(self, settings: S3, bucket: str, folder: str) -> None:
        self.location = f"s3://{bucket}/{folder}".rstrip("/")
        self._place = f"bucket {bucket}" + (f" at {settings.endpoint}" if settings.endpoint else "")
        self._store = _store(settings, bucket, folder, _REQUEST_SECONDS)
        self._downloads = _store(settings, bucket, folder, _DOWNLOAD_SECONDS)

    def copy(self, checkpoint: Saved) -> None:
        """What an earlier attempt has copied of the same checkpoint is not copied again."""
        folder, manifest = folder_name(checkpoint.step), (checkpoint.path / MANIFEST).read_bytes()
        with self._explained(f"step {checkpoint.step}"):
            there = self._sizes(folder)
            if self._read(f"{folder}/{MANIFEST}") == manifest:
                return
            if self._read(f"{folder}/{_COPYING}") != manifest:
                self._clear(folder)
                there = {}
                self._write(f"{folder}/{_COPYING}", manifest)
            for name, file in untrusted.decode(manifest, Manifest).files.items():
                if there.get(f"{folder}/{name}") != file.size:
                    self._write(f"{folder}/{name}", checkpoint.path / name)
            self._write(f"{folder}/{MANIFEST}", manifest)
            self._delete([f"{folder}/{_COPYING}"])

    def steps(self) -> list[int]:
        """Of whole checkpoints, in order."""
        with self._explained("the list of checkpoints"):
            return sorted(step for step, name in self._found() if name == MANIFEST)

    def keep(self, newest: int, count: int, local: Set[int] = frozenset()) -> None:
        """Prune as the volume is pruned: `count` stay up to the one just copied, and those that the volume has."""
        with self._explained("deleting old checkpoints"):
            whole = [step for step in self.steps() if step <= newest]
            kept = {*whole[-count:], newest, *local}
            for step in sorted({step for step, _ in self._found()} - kept):
                self._clear(folder_name(step))

    def fetch_newest(self, target: Path) -> Saved | None:
        """Downloaded beside the run's own checkpoints, verified, and only then given its name."""
        for step in reversed(self.steps()):
            staging = target / f"{STAGING}download-{step}"
            shutil.rmtree(staging, ignore_errors=True)
            with self._explained(f"step {step}"):
                self._download(folder_name(step), staging)
            if damage(staging, step) is None:
                final = target / folder_name(step)
                shutil.rmtree(final, ignore_errors=True)
                staging.rename(final)
                return next((each for each in saved_in(target) if each.path == final), None)
            shutil.rmtree(staging, ignore_errors=True)
        return None

    def _download(self, folder: str, target: Path) -> None:
        import obstore

        raw = self._read(f"{folder}/{MANIFEST}") or b""
        files = untrusted.decode(raw, Manifest).files
        for name in (name for name in files if _is_inside(target, name)):
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as output:
                for piece in obstore.get(self._downloads, f"{folder}/{name}").stream(min_chunk_size=_PIECE):
                    output.write(piece)
        (target / MANIFEST).write_bytes(raw)

    def _found(self) -> Iterator[tuple[int, str]]:
        for path in self._sizes(""):
            if match := _FOLDER.match(path):
                yield int(match[1]), path[match.end() :]

    def _sizes(self, folder: str) -> dict[str, int]:
        import obstore

        listed = obstore.list(self._store, prefix=folder or None)
        return {str(each["path"]): int(each["size"]) for page in listed for each in page}

    def _read(self, path: str) -> bytes | None:
        import obstore

        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    def _write(self, path: str, content: bytes | Path) -> None:
        import obstore

        try:
            obstore.put(self._store, path, content)
        except FileNotFoundError as error:  # also raised for an upload that the store has given up
            if isinstance(content, Path) and not content.exists():
                raise
            raise BucketError(f"{self._place}: {path}: {explain(str(error))}") from error

    def _clear(self, folder: str) -> None:
        """The manifest first."""
        self._delete([f"{folder}/{MANIFEST}", *self._sizes(folder)])

    def _delete(self, paths: Any) -> None:
        import obstore

        for path in paths:
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                continue

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except BaseError as error:
            raise BucketError(f"{self._place}: {what}: {explain(str(error))}") from error
        except msgspec.MsgspecError as error:
            raise BucketError(f"{self._place}: {what}: its manifest is unreadable ({error})") from error


def _store(settings: S3, bucket: str, folder: str, seconds: float) -> Any:
    from obstore.store import S3Store

    given: dict[str, Any] = {
        "prefix": folder,
        "endpoint": settings.endpoint,
        "access_key_id": os.environ.get(KEY),
        "secret_access_key": os.environ.get(SECRET),
        "token": os.environ.get(TOKEN),
    }
    return S3Store(
        bucket,
        **{name: value for name, value in given.items() if value},
        region=settings.region,
        client_options={
            "allow_http": True,
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "timeout": timedelta(seconds=seconds),
        },
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
    )


def explain(error: str) -> str:
    """A store's answer in a sentence with what to do; the whole answer is long and may hold a signed address."""
    for words, sentence in _EXPLANATIONS.items():
        if any(word in error for word in words):
            return sentence
    code = re.search(r"<Code>(\w+)</Code>", error)
    return f"the store failed{f' with {code[1]}' if code else ''}; check that it works and has room"


def own_bucket(config: RunConfig) -> Bucket | None:
    """Where this run's checkpoints go."""
    if config.s3 is None:
        return None
    _require(config)
    run = config.run
    folder = "/".join(filter(None, (config.s3.prefix, run.namespace, f"{run.name}-{run.id}")))
    return Bucket(config.s3, config.s3.bucket, folder)


def other_bucket(config: RunConfig) -> Bucket | None:
    """Where another run's checkpoints are, from which this one continues."""
    match = _LOCATION.fullmatch(config.resume_from)
    if config.s3 is None or match is None:
        return None
    return Bucket(config.s3, match[1], match[2].rstrip("/"))


def restore(config: RunConfig, target: Path, has_own: bool) -> None:
    """On an empty volume, a run starts from its own copies; a new run from those of `resume_from`."""
    if has_own:
        return
    for bucket in filter(None, (own_bucket(config), other_bucket(config))):
        try:
            found = bucket.fetch_newest(target)
        except BucketError as error:
            raise TrainerError("DependencyUnavailable", str(error)) from error
        if found is not None:
            return
    if config.resume_from:
        raise TrainerError("InvalidConfig", f"storage.resumeFrom: there is no whole checkpoint in {config.resume_from}")


def _require(config: RunConfig) -> None:
    missing = [name for name in (KEY, SECRET) if not os.environ.get(name)]
    if missing:
        raise TrainerError("InvalidConfig", f"storage.s3: {' and '.join(missing)} are not set")


def _is_inside(folder: Path, name: str) -> bool:
    """A manifest comes from outside: its names stay within the folder."""
    return (folder / name).resolve().is_relative_to(folder.resolve())
