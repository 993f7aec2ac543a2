"""The command line teaches, and imports nothing heavy to do so."""

import subprocess
import sys

import pytest

from clotho_contract.settings import Lora, Loss, Training, WorldModel
from clotho_trainer.__main__ import main
from clotho_trainer.failures import TrainerError
from clotho_trainer.tinker_backend import check


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for word in ("/generate", "CLOTHO_TOKEN", "tiny-model", "/progress"):
        assert word in out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom clotho_trainer.__main__ import _parser\n_parser().format_help()\n"
        "print([m for m in ('torch', 'trl', 'transformers', 'aiohttp', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("training", "named"),
    [
        (Training(steps=1, loss=Loss(beta=0.1)), "training.loss.beta"),
        (Training(steps=1, loss=Loss(type="vespo")), "training.loss.type vespo"),
        (Training(steps=1, world_model=WorldModel(coefficient=0.1)), "training.worldModel.coefficient"),
        (Training(steps=1, lora=Lora(rank=0)), "training.lora.rank 0"),
    ],
)
def test_the_tinker_backend_refuses_what_the_service_would_leave_out(
    training: Training, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    with pytest.raises(TrainerError, match=f"the tinker backend cannot do {named}; use the backend trl"):
        check(training)


def test_the_tinker_backend_wants_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(TrainerError, match="TINKER_API_KEY is not set"):
        check(Training(steps=1))
