"""Checkpoints as folders that are either whole or absent: written aside, flushed, renamed, and verified before use."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from clotho_contract.progress import CheckpointInfo
from clotho_trainer.training.durable import digest, flush

log = logging.getLogger(__name__)

_PREFIX, _STAGING, _MANIFEST = "step-", ".staging-", "manifest.json"


class File(Struct, frozen=True):
    size: int
    sha256: str


class Manifest(Struct, frozen=True):
    """Written last: a folder that does not match its manifest is torn or damaged."""

    step: int
    files: dict[str, File]


class Checkpoints:
    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def write(self, step: int, fill: Callable[[Path], None]) -> CheckpointInfo:
        """`fill` puts the files into an empty folder; only a complete folder ever gets its final name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear_staging()
        staging, final = self.folder / f"{_STAGING}{step}", self._path(step)
        staging.mkdir()
        fill(staging)
        _seal(staging, step)
        if final.exists():  # a damaged one that was skipped at the start
            shutil.rmtree(final)
        staging.rename(final)
        flush(self.folder)
        self._prune(step)
        return CheckpointInfo(step=step, path=str(final))

    def newest(self) -> CheckpointInfo | None:
        """The newest one that is whole; the others are named in a warning and passed over."""
        for step, path in reversed(self._steps()):
            if problem := damage(path, step):
                log.warning("checkpoint %s is skipped: %s", path.name, problem)
            else:
                return CheckpointInfo(step=step, path=str(path))
        return None

    def _path(self, step: int) -> Path:
        return self.folder / f"{_PREFIX}{step:08d}"

    def _steps(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        named = [path for path in self.folder.iterdir() if path.name.removeprefix(_PREFIX).isdigit()]
        return sorted((int(path.name.removeprefix(_PREFIX)), path) for path in named)

    def _prune(self, written: int) -> None:
        """What claims to be newer than what was just written is damaged: the run did not go on from there."""
        past = [path for step, path in self._steps() if step <= written]
        newer = [path for step, path in self._steps() if step > written]
        for path in past[: -self._keep] + newer:
            shutil.rmtree(path, ignore_errors=True)

    def _clear_staging(self) -> None:
        for path in self.folder.glob(f"{_STAGING}*"):
            shutil.rmtree(path, ignore_errors=True)


def damage(path: Path, step: int) -> str | None:
    """What is wrong with the checkpoint, or None when every byte is as it was written."""
    try:
        manifest = msgspec.json.decode((path / _MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        return f"its manifest is unreadable ({error})"
    if manifest.step != step:
        return f"its manifest is of step {manifest.step}"
    for name, expected in manifest.files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected.size:
            return f"{name} has {file.stat().st_size} bytes instead of {expected.size}"
        if digest(file) != expected.sha256:
            return f"{name} was altered after it was written"
    return None


def _seal(folder: Path, step: int) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = {str(path.relative_to(folder)): File(size=path.stat().st_size, sha256=digest(path)) for path in files}
    (folder / _MANIFEST).write_bytes(msgspec.json.encode(Manifest(step=step, files=contents)))
    for path in [*folder.rglob("*"), folder]:
        flush(path)
