"""`python -m clotho_trainer export` as a process: in a pod, on a laptop, interrupted and repeated."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clotho_contract import config as run_config
from clotho_contract import termination
from clotho_contract.exports import ExportProgress
from clotho_contract.settings import Export
from clotho_dev.ports import free_port
from clotho_trainer.training.checkpoints import Checkpoints
from integration.trainer.tiny import config

ROOT = Path(__file__).parents[4]


def environment(work: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": f"{ROOT / 'images' / 'contract'}:{ROOT / 'images' / 'trainer'}",
        "CLOTHO_DATA": str(work),
        "CLOTHO_CONFIG": str(work / "run.yaml"),
        "CLOTHO_TERMINATION_MESSAGE": str(work / "last-words"),
    }


def command(*options: object) -> list[str]:
    return [sys.executable, "-m", "clotho_trainer", "export", *map(str, options)]


def run(work: Path, *options: object) -> tuple[int, termination.Termination]:
    done = subprocess.run(
        command(*options), env=environment(work), capture_output=True, text=True, timeout=240, check=False
    )
    written = (work / "last-words").read_text()
    assert done.stdout.strip() == written
    end = termination.decode(written)
    assert end is not None, done.stderr
    return done.returncode, end


@pytest.fixture
def volume(model: Path, tmp_path: Path) -> Path:
    """What a finished run leaves: its file and a checkpoint, here of full weights."""
    chosen = msgspec.structs.replace(
        config(model, rank=0), export=Export(formats=("safetensors", "gguf"), quantization="f16", path="for/others")
    )
    (tmp_path / "run.yaml").write_text(run_config.render(chosen))

    def fill(folder: Path) -> None:
        for path in model.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "training_config.json").write_text(json.dumps({"config": msgspec.to_builtins(chosen)}))

    Checkpoints(tmp_path / "checkpoints", keep=1, run=chosen.run.id).write(7, fill)
    return tmp_path


def test_a_pod_exports_what_its_config_lists_and_skips_finished_artifacts(volume: Path) -> None:
    code, end = run(volume, "--status-port", free_port())
    assert (code, end.reason) == (0, "Finished"), end
    assert end.export is not None
    folder = volume / "for" / "others"
    assert end.export.folder == str(folder)
    paths = {file.path for file in end.export.files}
    assert {"model-f16.gguf", "Modelfile", "safetensors/config.json"} <= paths
    assert paths | {"manifest.json"} == {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    before = (folder / "model-f16.gguf").stat()
    (folder / "safetensors" / "config.json").write_text("{}")  # damaged: made again, the other is kept
    code, again = run(volume, "--status-port", free_port())
    assert code == 0
    assert again == end
    assert (folder / "model-f16.gguf").stat().st_ino == before.st_ino


def test_progress_is_served_and_a_stop_leaves_no_partial_artifact(volume: Path) -> None:
    """Ollama's part is played by a port that accepts and says nothing, so that the export stands still there."""
    port, deaf = free_port(), socket.create_server(("127.0.0.1", 0))
    silent = f"http://127.0.0.1:{deaf.getsockname()[1]}"
    checkpoint = volume / "checkpoints" / "step-00000007"
    options = ("--checkpoint", checkpoint, "--output", volume / "out", "--ollama", silent, "--name", "tiny")
    process = subprocess.Popen(command(*options, "--status-port", port), env=environment(volume))
    try:
        wait_for(port, "uploading")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        deaf.close()
    end = termination.decode((volume / "last-words").read_text())
    assert end is not None
    assert end.reason == "Stopped"
    assert sorted(path.name for path in (volume / "out").iterdir()) == ["Modelfile", "manifest.json", "model-q8_0.gguf"]


def wait_for(port: int, state: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress", timeout=5) as answer:
                if msgspec.json.decode(answer.read(), type=ExportProgress).state == state:
                    return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"the export did not come to {state}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--checkpoint", "/nowhere", "--output", "/tmp/out"], "there is no checkpoint /nowhere"),
        (["--checkpoint", "/nowhere"], "--output"),
        (
            ["--checkpoint", "/nowhere", "--output", "/tmp/o", "--ollama", "http://user:secret@host"],
            "without credentials",
        ),
        (["--config", "/nowhere/run.yaml"], "cannot read the run's config /nowhere/run.yaml"),
        ([], "there is no whole checkpoint"),
    ],
)
def test_mistakes_end_in_one_sentence(options: list[Any], message: str, model: Path, tmp_path: Path) -> None:
    chosen = msgspec.structs.replace(config(model), export=Export())
    (tmp_path / "run.yaml").write_text(run_config.render(chosen))
    code, end = run(tmp_path, *options)
    assert (code, end.reason) == (2, "InvalidConfig")
    assert message in end.message
