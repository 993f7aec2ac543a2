"""One tiny model on disk for all tests of the trainer."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from clotho_trainer.model import tiny

    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny.write(folder)
    return folder
