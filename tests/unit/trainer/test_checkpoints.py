"""Checkpoints are written atomically, pruned, and checked for damage."""

import errno
import json
import logging
from pathlib import Path

import pytest
from msgspec import structs

from clotho_contract.config import RunConfig, RunIdentity
from clotho_contract.settings import Checkpoint, Model, Training
from clotho_trainer.failures import TrainerError
from clotho_trainer.training.checkpoints import Checkpoints
from clotho_trainer.training.durable import VolumeFullError
from clotho_trainer.training.resume import starting_point


def fill(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"weights" * 100)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocabulary.json").write_text("{}")


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2, run="a")


def test_newest_checkpoint_is_found_and_old_ones_are_pruned(checkpoints: Checkpoints) -> None:
    for step in (5, 10, 15):
        written = checkpoints.write(step, fill)
    newest = checkpoints.newest()
    assert newest == written
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-00000010", "step-00000015"]


def test_the_checkpoint_of_the_best_evaluation_is_not_pruned(checkpoints: Checkpoints) -> None:
    checkpoints.write(5, fill)
    checkpoints.best_step = 7  # evaluated two steps later
    for step in (10, 15, 20):
        checkpoints.write(step, fill)
    names = sorted(path.name for path in checkpoints.folder.iterdir())
    assert names == ["step-00000005", "step-00000015", "step-00000020"]
    best = checkpoints.best()
    assert best is not None
    assert best.step == 5
    checkpoints.best_step = 21
    checkpoints.write(25, fill)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-00000020", "step-00000025"]


class SmallVolume:
    """Has room for so many checkpoints."""

    def __init__(self, checkpoints: Checkpoints, room: int) -> None:
        self.checkpoints, self.room = checkpoints, room

    def fill(self, folder: Path) -> None:
        fill(folder)
        if len(self.checkpoints.own()) >= self.room:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_older_checkpoints_give_way_on_a_full_volume(checkpoints: Checkpoints) -> None:
    checkpoints.keep = 3
    for step in (5, 10, 15):
        checkpoints.write(step, fill)
    checkpoints.best_step = 7
    checkpoints.write(20, SmallVolume(checkpoints, room=3).fill)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == [
        "step-00000005",
        "step-00000015",
        "step-00000020",
    ]


def test_the_newest_checkpoint_stays_when_the_next_does_not_fit(checkpoints: Checkpoints) -> None:
    for step in (5, 10):
        checkpoints.write(step, fill)
    with pytest.raises(VolumeFullError, match=r"GB are free in .*checkpoints"):
        checkpoints.write(15, SmallVolume(checkpoints, room=1).fill)
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000010"], "and no half-written one"
    assert checkpoints.newest() is not None


def test_a_damaged_checkpoint_is_not_what_stays_on_a_full_volume(checkpoints: Checkpoints) -> None:
    for step in (5, 10):
        checkpoints.write(step, fill)
    (checkpoints.folder / "step-00000010" / "weights.bin").write_bytes(b"damaged")
    with pytest.raises(VolumeFullError):
        checkpoints.write(10, SmallVolume(checkpoints, room=1).fill)
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000005"]


def test_an_empty_folder_has_no_newest_checkpoint(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() is None


def test_a_crash_while_writing_keeps_the_previous_checkpoint(checkpoints: Checkpoints) -> None:
    def crash(folder: Path) -> None:
        (folder / "weights.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    old = checkpoints.write(5, fill)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.write(10, crash)
    assert checkpoints.newest() == old
    assert checkpoints.write(10, fill).step == 10, "what the crash left behind is cleared away"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "weights.bin").unlink(), "weights.bin is missing"),
        (lambda folder: (folder / "weights.bin").write_bytes(b"short"), "has 5 bytes instead of 700"),
        (lambda folder: (folder / "weights.bin").write_bytes(b"Weights" * 100), "was altered after it was written"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "its manifest is unreadable"),
        (lambda folder: (folder / "manifest.json").unlink(), "its manifest is unreadable"),
        (lambda folder: (folder / "manifest.json").write_bytes(b'{"run": "\xff"}'), "its manifest is unreadable"),
        (
            lambda folder: (folder / "manifest.json").write_bytes(b'{"x": ' + b"[" * 10_000),
            "its manifest is unreadable",
        ),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    checkpoints: Checkpoints, damage: object, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = checkpoints.write(5, fill)
    damage(Path(checkpoints.write(10, fill).path))  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        assert checkpoints.newest() == old
    assert "step-00000010" in caplog.text
    assert sentence in caplog.text


def test_damaged_newer_ones_never_push_out_what_was_just_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1, run="a")
    roomier = Checkpoints(checkpoints.folder, keep=5, run="a")
    roomier.write(25, fill)
    for step in (50, 75):
        (Path(roomier.write(step, fill).path) / "weights.bin").write_bytes(b"")
    assert checkpoints.newest() is not None
    written = checkpoints.write(30, fill)
    assert checkpoints.newest() == written
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000030"]


def test_a_damaged_checkpoint_can_be_overwritten(checkpoints: Checkpoints) -> None:
    written = checkpoints.write(5, fill)
    (Path(written.path) / "weights.bin").write_bytes(b"")
    assert checkpoints.newest() is None
    checkpoints.write(5, fill)
    assert checkpoints.newest() == written


@pytest.fixture
def other(checkpoints: Checkpoints) -> Checkpoints:
    """The same volume in the hands of another run."""
    return Checkpoints(checkpoints.folder, keep=1, run="b")


def test_another_run_s_checkpoints_are_never_pruned_or_replaced(checkpoints: Checkpoints, other: Checkpoints) -> None:
    theirs = [checkpoints.write(step, fill) for step in (5, 10)]
    own = [other.write(step, fill) for step in (7, 10, 12)]
    assert checkpoints.newest() == theirs[-1]
    assert other.newest() == own[-1]
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == [
        "step-00000005",
        "step-00000010",
        "step-00000012",
    ]
    assert checkpoints.write(12, fill).path.endswith("step-00000012-a"), "step 12 of the other run keeps its name"
    assert other.newest() == own[-1]


def test_another_run_s_checkpoint_is_used_only_when_configured(checkpoints: Checkpoints, other: Checkpoints) -> None:
    theirs = checkpoints.write(10, fill)
    assert other.survey().newest is None
    found = other.survey(includes_other_runs=True).newest
    assert found is not None
    assert (found.info, found.run) == (theirs, "a")
    own = other.write(3, fill)
    found = other.survey(includes_other_runs=True).newest
    assert found is not None
    assert found.info == own, "a run that has trained goes on from its own"


def test_checkpoints_of_the_first_release_belong_to_the_run_in_their_config(
    checkpoints: Checkpoints, other: Checkpoints
) -> None:
    def fill_with_config(folder: Path) -> None:
        fill(folder)
        (folder / "training_config.json").write_text('{"step": 5, "config": {"run": {"id": "a"}}}')

    written = Path(checkpoints.write(5, fill_with_config).path)
    manifest = json.loads((written / "manifest.json").read_text())
    del manifest["run"]
    (written / "manifest.json").write_text(json.dumps(manifest))
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 5
    assert other.newest() is None


CONFIG = RunConfig(
    run=RunIdentity(name="b", namespace="default", id="b"), model=Model(name="m"), training=Training(steps=10)
)


def starting_over(config: RunConfig) -> RunConfig:
    checkpoint = Checkpoint(on_damage="StartOver")
    return structs.replace(config, training=structs.replace(config.training, checkpoint=checkpoint))


def test_a_run_whose_checkpoints_are_all_damaged_fails_unless_it_may_start_over(other: Checkpoints) -> None:
    assert starting_point(other, CONFIG) is None, "a new run"
    for path in Path(other.write(5, fill).path).rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.raises(
        TrainerError, match=r"step-00000005: its manifest is unreadable .*onDamage: StartOver"
    ) as caught:
        starting_point(other, CONFIG)
    assert caught.value.reason == "CheckpointsDamaged"
    assert starting_point(other, starting_over(CONFIG)) is None
    assert other.write(5, fill).step == 5
    assert other.newest() is not None


def test_a_run_whose_checkpoints_are_gone_fails_unless_it_may_start_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3, run="b", known_step=110)
    with pytest.raises(TrainerError, match=r"checkpoint of step 110, and .* has none; .*onDamage: StartOver") as caught:
        starting_point(checkpoints, CONFIG)
    assert caught.value.reason == "CheckpointsDamaged"
    with caplog.at_level(logging.WARNING):
        assert starting_point(checkpoints, starting_over(CONFIG)) is None
    assert "training starts again at step 1" in caplog.text
    checkpoints.write(5, fill)
    start = starting_point(checkpoints, CONFIG)
    assert start is not None
    assert start.step == 5, "one that is older than the last is enough"


def test_an_older_whole_checkpoint_is_enough(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, run="b")
    checkpoints.write(3, fill)
    (Path(checkpoints.write(5, fill).path) / "weights.bin").unlink()
    start = starting_point(checkpoints, CONFIG)
    assert start is not None
    assert start.step == 3


@pytest.mark.parametrize("continues", [True, False])
def test_a_volume_of_a_finished_run_does_not_complete_a_new_one(
    continues: bool, checkpoints: Checkpoints, other: Checkpoints
) -> None:
    checkpoints.write(10, fill)
    config = structs.replace(CONFIG, continues_other_runs=continues)
    if not continues:
        assert starting_point(other, config) is None
        return
    with pytest.raises(TrainerError, match=r"step 10 of run a, and training.steps is 10: .* raise training.steps"):
        starting_point(other, config)
    longer = structs.replace(config, training=Training(steps=11))
    assert starting_point(other, longer) is not None


def test_a_finished_run_that_is_restarted_is_still_finished(other: Checkpoints) -> None:
    other.write(10, fill)
    start = starting_point(other, CONFIG)
    assert start is not None
    assert start.step == 10
