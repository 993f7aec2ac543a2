"""The bytes of the groups, appended to files of a bounded size. The database holds where each group lies.

Bytes are flushed before the database refers to them and are never overwritten, so what a crash leaves behind the last
group that it refers to is never read. A file is deleted once none of its groups is needed.
"""

import logging
import os
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from clotho_api_server.state.disk import Disk

log = logging.getLogger(__name__)
FOLDER_NAME: Final = "groups"
SEGMENT_BYTES: Final = 64 * 1024**2  # one group that stays keeps at most this much from being deleted


class Place(NamedTuple):
    segment: int
    offset: int
    length: int


class Segments:
    """Written by one thread. A start begins a new file, whatever the last one ends with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER_NAME
        self._folder.mkdir(parents=True, exist_ok=True)
        self.disk = Disk(self._folder)
        _flush_folder(folder)
        self._numbers = {int(path.name) for path in self._folder.iterdir()}
        self._last = max(self._numbers, default=0)
        self._file: int | None = None
        self._end = self._flushed = self._committed = 0

    def append(self, body: bytes) -> Place:
        if self._file is None or self._end >= SEGMENT_BYTES:
            self.close()
            self._file = self._create()
        place = Place(self._last, self._end, len(body))
        left, offset = memoryview(body), self._end
        while left:
            written = os.pwrite(self._file, left, offset)
            left, offset = left[written:], offset + written
        self._end = offset
        return place

    def flush(self) -> None:
        """Before the commit."""
        if self._file is not None and self._flushed < self._end:
            os.fdatasync(self._file)
            self._flushed = self._end

    def committed(self, needed: Container[int]) -> None:
        """After the commit: files without a needed group go, while there is room not the one that is being written."""
        self._committed = self._end
        if self._last not in needed and self.disk.problem:
            self.close()
        written = self._last if self._file is not None else None
        in_use = {number for number in self._numbers if number in needed or number == written}
        for number in self._numbers - in_use:
            try:
                self._path(number).unlink(missing_ok=True)
            except OSError as error:
                log.warning("could not delete %s: %s", self._path(number), error)
        self._numbers = in_use

    def undo(self) -> None:
        """Instead of the commit. A file that could not be written or flushed is not trusted with more."""
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file, self._committed)
            os.close(self._file)
            self._file = None

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def read(self, place: Place) -> bytes | None:
        """From any thread; None when it is not there any more, or not all of it."""
        try:
            file = os.open(self._path(place.segment), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            body = os.pread(file, place.length, place.offset)
            return body if len(body) == place.length else None
        finally:
            os.close(file)

    def _create(self) -> int:
        self._last += 1
        file = os.open(self._path(self._last), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._numbers.add(self._last)
        self._end = self._flushed = self._committed = 0
        _flush_folder(self._folder)
        return file

    def _path(self, number: int) -> Path:
        return self._folder / str(number)


def _flush_folder(folder: Path) -> None:
    """A new file is found again after a power failure only if its folder is flushed too."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
