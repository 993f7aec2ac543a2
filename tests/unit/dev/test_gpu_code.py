"""Which code of a CUDA library stays for one architecture. The library is made here, byte by byte."""

import struct

from clotho_dev.gpu_code import blank

PTX, CUBIN = 1, 2
NAMES = b"\0.nv_fatbin\0.shstrtab\0"


def container(*entries: tuple[int, int, bytes]) -> bytes:
    body = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 64, len(code))
        + bytes(12)
        + struct.pack("<I", architecture)
        + bytes(32)
        + code
        for kind, architecture, code in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(*containers: bytes) -> bytearray:
    code = bytes(8).join(containers)  # they may have padding between them
    names_at = 64 + len(code)
    headers = b"".join(
        struct.pack("<IIQQQQIIQQ", name, 0, 0, 0, offset, length, 0, 0, 0, 0)
        for name, offset, length in [(0, 0, 0), (1, 64, len(code)), (12, names_at, len(NAMES))]
    )
    start = bytearray(64)
    start[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", start, 0x28, names_at + len(NAMES))
    struct.pack_into("<HHH", start, 0x3A, 64, 3, 2)
    return start + code + NAMES + headers


def blanked(*containers: bytes) -> set[bytes]:
    """The codes that are gone, each of eight equal letters."""
    made = library(*containers)
    before = bytes(made)
    blank(made, 90)
    assert len(made) == len(before)
    codes = (bytes([letter]) * 8 for letter in b"abcdefgh")
    return {code[:1] for code in codes if code in before and code not in made}


def test_code_of_other_gpus_is_blanked_where_the_wanted_one_has_its_own() -> None:
    entries = (CUBIN, 75, b"a" * 8), (CUBIN, 90, b"b" * 8), (CUBIN, 100, b"c" * 8), (PTX, 120, b"d" * 8)
    assert blanked(container(*entries)) == {b"a", b"c", b"d"}


def test_older_code_stays_where_it_is_all_that_the_wanted_gpu_can_use() -> None:
    entries = (PTX, 80, b"a" * 8), (CUBIN, 80, b"b" * 8), (CUBIN, 100, b"c" * 8)
    assert blanked(container(*entries)) == {b"c"}


def test_each_container_is_judged_alone() -> None:
    ours, older = container((CUBIN, 80, b"a" * 8), (CUBIN, 90, b"b" * 8)), container((CUBIN, 80, b"c" * 8))
    assert blanked(ours, older) == {b"a"}


def test_other_files_stay_as_they_are() -> None:
    text = bytearray(b"not a library" * 10)
    assert blank(text, 90) == 0
    assert text == b"not a library" * 10
