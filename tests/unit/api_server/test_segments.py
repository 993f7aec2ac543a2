"""Files of bytes: what was committed stays readable, what was not is given up, what is not needed is deleted."""

import errno
import os
from pathlib import Path

import pytest

from clotho_api_server.state import segments as segments_module
from clotho_api_server.state.segments import FOLDER_NAME, Place, Segments


@pytest.fixture(autouse=True)
def _tiny_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES", 10)


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / FOLDER_NAME).iterdir()}


def commit(segments: Segments, *bodies: bytes, needed: tuple[int, ...] = ()) -> list[Place]:
    places = [segments.append(body) for body in bodies]
    segments.flush()
    segments.committed({*needed, *(place.segment for place in places)})
    return places


def test_bodies_are_read_back_from_files_of_a_bounded_size(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    bodies = [b"one", b"twotwotwo", b"three", b""]
    places = commit(segments, *bodies)
    assert [segments.read(place) for place in places] == bodies
    assert len(files(tmp_path)) == 2


def test_a_file_is_deleted_when_none_of_its_groups_is_needed(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    old, new = commit(segments, b"x" * 20, b"y" * 20)
    assert (old.segment, new.segment) == (1, 2)
    segments.committed({2})
    assert segments.read(old) is None
    assert segments.read(new) == b"y" * 20
    segments.committed(set())
    assert files(tmp_path) == {"2"}  # still being written


def test_a_start_opens_a_new_file_and_deletes_unused_ones(tmp_path: Path) -> None:
    [kept] = commit(Segments(tmp_path), b"kept")
    crashed = Segments(tmp_path)
    crashed.append(b"never committed")
    restarted = Segments(tmp_path)
    [new] = commit(restarted, b"new", needed=(kept.segment,))
    assert (restarted.read(kept), restarted.read(new)) == (b"kept", b"new")
    assert files(tmp_path) == {str(kept.segment), str(new.segment)}


def test_an_undone_append_is_truncated(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    [kept] = commit(segments, b"kept")
    segments.append(b"half")
    segments.undo()
    assert (tmp_path / FOLDER_NAME / str(kept.segment)).stat().st_size == 4
    [after] = commit(segments, b"after", needed=(kept.segment,))
    assert (segments.read(kept), segments.read(after)) == (b"kept", b"after")


def test_a_file_that_could_not_be_flushed_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments(tmp_path)
    [kept] = commit(segments, b"kept")
    segments.append(b"lost")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _refuse)
        with pytest.raises(OSError, match="I/O error"):
            segments.flush()
    segments.undo()
    assert segments.append(b"next").segment > kept.segment


def test_a_damaged_file_is_detected(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    [place] = commit(segments, b"0123456789")
    os.truncate(tmp_path / FOLDER_NAME / str(place.segment), 4)
    assert segments.read(place) is None


def test_writes_that_the_disk_takes_in_parts_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: whole(file, data[:3], offset))
    segments = Segments(tmp_path)
    [place] = commit(segments, b"0123456789")
    assert segments.read(place) == b"0123456789"


def _refuse(_: int) -> None:
    raise OSError(errno.EIO, "I/O error")
