"""A checkpoint is whole or it is not there."""

import logging
from pathlib import Path

import pytest

from clotho_trainer.training.checkpoints import Checkpoints


def fill(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"weights" * 100)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocabulary.json").write_text("{}")


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def test_the_newest_is_found_and_old_ones_go(checkpoints: Checkpoints) -> None:
    for step in (5, 10, 15):
        written = checkpoints.write(step, fill)
    newest = checkpoints.newest()
    assert newest == written
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-00000010", "step-00000015"]


def test_nothing_is_found_in_an_empty_place(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() is None


def test_a_crash_while_writing_leaves_the_old_one(checkpoints: Checkpoints) -> None:
    def crash(folder: Path) -> None:
        (folder / "weights.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    old = checkpoints.write(5, fill)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.write(10, crash)
    assert checkpoints.newest() == old
    assert checkpoints.write(10, fill).step == 10, "what the crash left behind is in nobody's way"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "weights.bin").unlink(), "weights.bin is missing"),
        (lambda folder: (folder / "weights.bin").write_bytes(b"short"), "has 5 bytes instead of 700"),
        (lambda folder: (folder / "weights.bin").write_bytes(b"Weights" * 100), "was altered after it was written"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "its manifest is unreadable"),
        (lambda folder: (folder / "manifest.json").unlink(), "its manifest is unreadable"),
    ],
)
def test_a_damaged_one_is_passed_over_with_a_warning(
    checkpoints: Checkpoints, damage: object, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = checkpoints.write(5, fill)
    damage(Path(checkpoints.write(10, fill).path))  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        assert checkpoints.newest() == old
    assert "step-00000010" in caplog.text
    assert sentence in caplog.text


def test_damaged_newer_ones_never_push_out_what_was_just_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    roomier = Checkpoints(checkpoints.folder, keep=5)
    roomier.write(25, fill)
    for step in (50, 75):
        (Path(roomier.write(step, fill).path) / "weights.bin").write_bytes(b"")
    assert checkpoints.newest() is not None
    written = checkpoints.write(30, fill)
    assert checkpoints.newest() == written
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000030"]


def test_a_damaged_one_can_be_written_again(checkpoints: Checkpoints) -> None:
    written = checkpoints.write(5, fill)
    (Path(written.path) / "weights.bin").write_bytes(b"")
    assert checkpoints.newest() is None
    checkpoints.write(5, fill)
    assert checkpoints.newest() == written
