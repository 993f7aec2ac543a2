"""Layers of images as buildah's storage has them, read as the archives that their digests are of, without copies.

The storage keeps the files of a layer unpacked and, beside them, a record of everything else in its archive
(tar-split): lines of JSON that are either bytes to write or the name of the file whose contents come next.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

from clotho_dev.cluster.failure import ClusterError

CHUNK_BYTES = 1 << 20
_FILE, _BYTES = 1, 2  # types of a line


def open_layer(storage: Path, digest: str) -> io.BufferedReader:
    """The archive of one layer; containerd checks that it has the digest."""
    return io.BufferedReader(_Chunks(_chunks(storage, _identifier(storage, digest))), CHUNK_BYTES)


class _Chunks(io.RawIOBase):
    """Pieces of any size, read as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _identifier(storage: Path, digest: str) -> str:
    for layer in json.loads((storage / "overlay-layers" / "layers.json").read_text()):
        if layer.get("diff-digest") == digest:
            return str(layer["id"])
    raise ClusterError(f"{storage} has no layer {digest}; remove the folder, and the images are built again")


def _chunks(storage: Path, identifier: str) -> Iterator[bytes]:
    files = storage / "overlay" / identifier / "diff"
    with gzip.open(storage / "overlay-layers" / f"{identifier}.tar-split.gz", "rb") as record:
        for line in record:
            entry = json.loads(line)
            if entry["type"] == _BYTES:
                yield base64.b64decode(entry["payload"])
            elif entry["type"] == _FILE and entry.get("size"):
                yield from _contents(files / _name(entry))


def _name(entry: dict[str, str]) -> str:
    """Names that are not UTF-8 are encoded."""
    raw = entry.get("name_raw")
    return entry["name"] if raw is None else os.fsdecode(base64.b64decode(raw))


def _contents(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
