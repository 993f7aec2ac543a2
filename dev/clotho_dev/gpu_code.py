"""Blanks the machine code of other GPUs in the libraries of a folder, so that they compress to what one GPU runs.

    python -m clotho_dev.gpu_code FOLDER 90          90 is a Hopper

A CUDA library holds containers with an entry for each architecture; the driver reads the headers of the entries, then
the code of one. The headers stay, so every offset does.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

Library = bytearray | mmap.mmap

_SECTIONS: Final = (b".nv_fatbin", b"__nv_relfatbin")
_CONTAINER: Final = 0xBA55ED50
_ASSEMBLY, _MACHINE_CODE = 1, 2
_SMALLEST: Final = 4 << 20  # bytes of a library that is worth it


class Entry(NamedTuple):
    kind: int
    architecture: int
    start: int
    end: int


def blank(library: Library, wanted: int) -> int:
    """Everything that a GPU of the wanted architecture never runs; how many bytes that were."""
    blanked = 0
    for first, last in _code_sections(library):
        for entries in _containers(library, first, last):
            for entry in _unused(entries, wanted):
                library[entry.start : entry.end] = bytes(entry.end - entry.start)
                blanked += entry.end - entry.start
    return blanked


def _unused(entries: list[Entry], wanted: int) -> Iterator[Entry]:
    """What newer GPUs run, and machine code of older ones where the wanted one has its own."""
    has_own = any(entry.kind == _MACHINE_CODE and entry.architecture == wanted for entry in entries)
    for entry in entries:
        is_older_code = entry.kind == _MACHINE_CODE and entry.architecture < wanted
        is_code = entry.kind in (_ASSEMBLY, _MACHINE_CODE)
        if is_code and (entry.architecture > wanted or (is_older_code and has_own)):
            yield entry


def _code_sections(library: Library) -> Iterator[tuple[int, int]]:
    if library[:5] != b"\x7fELF\x02":
        return
    (headers,) = struct.unpack_from("<Q", library, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", library, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, headers + index * size) for index in range(count)]
    for name, _, _, _, offset, length, *_ in sections:
        start = sections[of_names][4] + name
        if library[start : library.find(b"\0", start)] in _SECTIONS:
            yield offset, offset + length


def _containers(library: Library, start: int, end: int) -> Iterator[list[Entry]]:
    while start + 16 <= end:
        magic, _, header, length = struct.unpack_from("<IHHQ", library, start)
        if magic != _CONTAINER:  # between two of them
            start += 8
            continue
        start += header
        yield list(_entries(library, start, start + length))
        start += length


def _entries(library: Library, start: int, end: int) -> Iterator[Entry]:
    while start < end:
        kind, _, header, length = struct.unpack_from("<HHIQ", library, start)
        (architecture,) = struct.unpack_from("<I", library, start + 28)
        start += header
        yield Entry(kind, architecture, start, start + length)
        start += length


def main() -> None:
    folder, wanted = Path(sys.argv[1]), int(sys.argv[2])
    for path in sorted(folder.rglob("*.so*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size < _SMALLEST:
            continue
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as library:
            blanked = blank(library, wanted)
        if blanked:
            print(f"{path.relative_to(folder)}: {blanked >> 20} MiB of other GPUs' code blanked", flush=True)


if __name__ == "__main__":
    main()
