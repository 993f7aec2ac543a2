"""The folder that an export fills: each artifact is there whole or not at all, and is not made twice."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct, field

from clotho_contract.exports import ExportedFile
from clotho_trainer.failures import TrainerError
from clotho_trainer.training.durable import digest, flush

_MANIFEST, _STAGING = "manifest.json", ".staging-"


class _Manifest(Struct, frozen=True):
    """Written after each artifact: what it names is whole, and was made from `source`."""

    source: str = ""
    artifacts: dict[str, tuple[ExportedFile, ...]] = field(default_factory=dict)


class Output:
    def __init__(self, folder: Path, source: str) -> None:
        self.folder = folder
        self._create()
        known = self._read_manifest()
        self._manifest = known if known.source == source else _Manifest(source)

    def files_of(self, artifact: str) -> tuple[ExportedFile, ...]:
        return self._manifest.artifacts.get(artifact, ())

    def holds(self, artifact: str) -> bool:
        """True when it was made from the same source and every byte is still as it was written."""
        files = self.files_of(artifact)
        return bool(files) and all(self._is_intact(file) for file in files)

    def write(self, artifact: str, fill: Callable[[Path], None]) -> tuple[ExportedFile, ...]:
        """`fill` makes a file or a folder aside; it gets its name once it is complete and on the disk."""
        staging, final = self.folder / f"{_STAGING}{artifact}", self.folder / artifact
        fill(staging)
        paths = sorted(staging.rglob("*")) if staging.is_dir() else [staging]
        for path in [*paths, *([staging] if staging.is_dir() else [])]:
            flush(path)
        if final.is_dir():
            shutil.rmtree(final)
        staging.replace(final)
        flush(self.folder)
        made = sorted(path for path in final.rglob("*") if path.is_file()) if final.is_dir() else [final]
        files = tuple(self._describe(path) for path in made)
        self._remember(artifact, files)
        return files

    def require_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise TrainerError(
                "InvalidConfig",
                f"the export needs {needed / 1e9:.1f} GB in {self.folder}, which has {free / 1e9:.1f} GB left; "
                "raise storage.size or choose a smaller quantization",
            )

    def _create(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for leftover in self.folder.glob(f"{_STAGING}*"):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        except OSError as error:
            raise TrainerError("InvalidConfig", f"cannot write into {self.folder}: {error.strerror}") from error

    def _remember(self, artifact: str, files: tuple[ExportedFile, ...]) -> None:
        artifacts = self._manifest.artifacts | {artifact: files}
        self._manifest = _Manifest(self._manifest.source, artifacts)
        staging = self.folder / f"{_STAGING}{_MANIFEST}"
        staging.write_bytes(msgspec.json.format(msgspec.json.encode(self._manifest)) + b"\n")
        flush(staging)
        staging.replace(self.folder / _MANIFEST)
        flush(self.folder)

    def _read_manifest(self) -> _Manifest:
        try:
            return msgspec.json.decode((self.folder / _MANIFEST).read_bytes(), type=_Manifest)
        except (OSError, msgspec.MsgspecError):
            return _Manifest()

    def _is_intact(self, file: ExportedFile) -> bool:
        path = self.folder / file.path
        return path.is_file() and path.stat().st_size == file.bytes and digest(path) == file.sha256

    def _describe(self, path: Path) -> ExportedFile:
        return ExportedFile(path=str(path.relative_to(self.folder)), bytes=path.stat().st_size, sha256=digest(path))
