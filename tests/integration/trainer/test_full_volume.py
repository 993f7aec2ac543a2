"""A volume on which the next checkpoint does not fit: a real file system, written to by the real libraries."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clotho_trainer.training.checkpoints import Checkpoints
from clotho_trainer.training.durable import VolumeFullError
from rig.volumes import MIB, small_volume

WEIGHTS = {"weights": torch.ones(2 * 1024**2, dtype=torch.uint8)}


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """Of five MiB."""
    with small_volume(tmp_path / "volume", 5 * MIB) as folder:
        yield folder


def with_safetensors(folder: Path) -> None:
    save_file(WEIGHTS, folder / "model.safetensors")


def with_torch(folder: Path) -> None:
    torch.save(WEIGHTS, folder / "optimizer.pt")


def with_python(folder: Path) -> None:
    (folder / "card.md").write_bytes(bytes(2 * 1024**2))


@pytest.mark.parametrize("fill", [with_safetensors, with_torch, with_python])
def test_older_checkpoints_give_way_and_the_newest_stays(volume: Path, fill) -> None:
    checkpoints = Checkpoints(volume, keep=9, run="a")
    for step in (1, 2, 3):
        checkpoints.write(step, fill)
    assert [each.step for each in checkpoints.own()] == [2, 3]

    def fill_twice(folder: Path) -> None:
        fill(folder)
        for file in tuple(folder.iterdir()):
            file.rename(folder / f"first-{file.name}")
        fill(folder)

    with pytest.raises(VolumeFullError, match="GB are free in"):
        checkpoints.write(4, fill_twice)
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 3
    assert [path.name for path in volume.iterdir()] == ["step-00000003"]
