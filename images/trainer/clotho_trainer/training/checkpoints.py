"""Checkpoints as folders that are either whole or absent: written aside, flushed, renamed, and verified before use.

Each belongs to the run that wrote it. A volume may hold those of several runs; a run deletes only its own.
"""

import logging
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from clotho_contract import untrusted
from clotho_contract.progress import CheckpointInfo
from clotho_trainer.training.durable import VolumeFullError, digest, flush, is_full, room_in

log = logging.getLogger(__name__)

SUMMARY = "training_config.json"
STAGING, MANIFEST = ".staging-", "manifest.json"
_NAME = re.compile(r"step-(\d+)(-.+)?")


class File(Struct, frozen=True):
    size: int
    sha256: str


class Manifest(Struct, frozen=True):
    """Written last: a folder that does not match its manifest is torn or damaged."""

    step: int
    files: dict[str, File]
    run: str = ""  # id of the run that wrote it; the first release did not record it here


class _RunId(Struct, frozen=True):
    id: str


class _Config(Struct, frozen=True):
    run: _RunId


class _Summary(Struct, frozen=True):
    config: _Config


@dataclass(frozen=True)
class Saved:
    """A checkpoint's folder, whole or not."""

    step: int
    path: Path
    run: str | None  # None when that cannot be read any more

    @property
    def info(self) -> CheckpointInfo:
        return CheckpointInfo(step=self.step, path=str(self.path))


@dataclass(frozen=True)
class Survey:
    """The checkpoint to resume from, and why those before it in the order of preference cannot be read."""

    newest: Saved | None
    damaged: tuple[str, ...]


class Checkpoints:
    def __init__(self, folder: Path, keep: int, run: str, known_step: int = 0) -> None:
        """`known_step`: of a checkpoint that the run has written before; 0 where none is known."""
        self.folder = folder
        self.run = run
        self.known_step = known_step
        self.best_step: int | None = None  # of the best evaluation; the checkpoint that it was made with is kept
        self.keep = keep

    def write(self, step: int, fill: Callable[[Path], None]) -> CheckpointInfo:
        """`fill` puts the files into an empty folder; only a complete folder ever gets its final name.

        On a full volume all older checkpoints but the newest give way.
        """
        written = self._try_to_write(step, fill)
        if written is None and self._make_room():
            written = self._try_to_write(step, fill)
        if written is None:
            raise VolumeFullError(room_in(self.folder))
        self._prune(step)
        return written

    def _try_to_write(self, step: int, fill: Callable[[Path], None]) -> CheckpointInfo | None:
        """None where it does not fit: while an exception lives, torch's half-written file is open and takes room."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear_staging()
        staging, final = self.folder / f"{STAGING}{self.run}-{step}", self._path(step)
        try:
            staging.mkdir()
            fill(staging)
            _seal(staging, step, self.run)
        except Exception as error:
            was_full = is_full(self.folder, error)
            self._clear_staging()
            if not was_full:
                raise
            log.warning("the checkpoint of step %d does not fit: %s", step, str(error))
            return None
        if final.exists():  # a damaged one that was skipped at the start
            shutil.rmtree(final)
        staging.rename(final)
        flush(self.folder)
        return CheckpointInfo(step=step, path=str(final))

    def newest(self) -> CheckpointInfo | None:
        """The run's newest checkpoint that is whole."""
        found = self.survey().newest
        return found.info if found else None

    def best(self) -> CheckpointInfo | None:
        """The last that the run wrote before the best evaluation."""
        found = self._best(self.own())
        return found.info if found else None

    def _best(self, own: Sequence[Saved]) -> Saved | None:
        before = [each for each in own if self.best_step is not None and each.step <= self.best_step]
        return before[-1] if before else None

    def own(self) -> list[Saved]:
        """Those that this run has written, the oldest first."""
        return sorted((each for each in saved_in(self.folder) if each.run == self.run), key=lambda each: each.step)

    def survey(self, *, includes_other_runs: bool = False) -> Survey:
        """The run's own checkpoints come first, newest first; then, where allowed, those of other runs."""
        saved = sorted(saved_in(self.folder), key=lambda each: each.step, reverse=True)
        candidates = [each for each in saved if each.run in (self.run, None)]
        if includes_other_runs:
            candidates += [each for each in saved if each not in candidates]
        problems: list[str] = []
        for each in candidates:
            problem = damage(each.path, each.step)
            if problem is None:
                return Survey(each, tuple(problems))
            log.warning("checkpoint %s is skipped: %s", each.path.name, problem)
            problems.append(f"{each.path.name}: {problem}")
        return Survey(None, tuple(problems))

    def _path(self, step: int) -> Path:
        """Another run's checkpoint of the same step keeps its name."""
        plain = self.folder / folder_name(step)
        if not plain.exists() or _owner(plain) == self.run:
            return plain
        return plain.with_name(f"{plain.name}-{self.run}")

    def _prune(self, written: int) -> None:
        """What claims to be newer than what was just written is damaged: the run did not go on from there."""
        own = self.own()
        past = [each for each in own if each.step <= written]
        newer = [each for each in own if each.step > written]
        for each in past[: -self.keep] + newer:
            if each != self._best(past):
                shutil.rmtree(each.path, ignore_errors=True)

    def _make_room(self) -> bool:
        """All but the newest that is whole and the best give way; False where that is nothing."""
        newest = self.newest()
        if newest is None:
            return False
        old = [each for each in self.own() if each.info not in (newest, self.best())]
        for each in old:
            log.warning("checkpoint %s is deleted to make room", each.path.name)
            shutil.rmtree(each.path, ignore_errors=True)
        return bool(old)

    def _clear_staging(self) -> None:
        for path in self.folder.glob(f"{STAGING}*"):
            shutil.rmtree(path, ignore_errors=True)


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def saved_in(folder: Path) -> Iterator[Saved]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            yield Saved(int(match[1]), path, _owner(path))


def damage(path: Path, step: int) -> str | None:
    """What is wrong with the checkpoint, or None when every byte is as it was written."""
    try:
        manifest = untrusted.decode((path / MANIFEST).read_bytes(), Manifest)
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


def _owner(path: Path) -> str | None:
    """The run that wrote it: by the manifest, else by the run's config beside it."""
    with suppress(OSError, msgspec.MsgspecError):
        if run := untrusted.decode((path / MANIFEST).read_bytes(), Manifest).run:
            return run
    with suppress(OSError, msgspec.MsgspecError):
        return untrusted.decode((path / SUMMARY).read_bytes(), _Summary).config.run.id
    return None


def _seal(folder: Path, step: int, run: str) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = {str(path.relative_to(folder)): File(size=path.stat().st_size, sha256=digest(path)) for path in files}
    (folder / MANIFEST).write_bytes(msgspec.json.encode(Manifest(step=step, files=contents, run=run)))
    for path in [*folder.rglob("*"), folder]:
        flush(path)
