"""The command line: its help is complete and imports nothing heavy."""

import subprocess
import sys
from typing import Any

import pytest

from clotho_contract.config import Endpoints, RunConfig, RunIdentity
from clotho_contract.settings import Inference, Lora, Loss, Model, Training, WorldModel
from clotho_trainer.__main__ import main
from clotho_trainer.failures import TrainerError
from clotho_trainer.training.tinker import check


def test_help_lists_endpoints_variables_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
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


def run_with(**changes: Any) -> RunConfig:
    settings: dict[str, Any] = {"model": Model(name="some/model"), "training": Training(steps=1)} | changes
    return RunConfig(
        run=RunIdentity(name="run", namespace="default", id="run-1"),
        endpoints=Endpoints(api_server="http://api", inference="http://inference"),
        **settings,
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"training": Training(steps=1, loss=Loss(beta=0.1))}, "training.loss.beta"),
        ({"training": Training(steps=1, loss=Loss(type="vespo"))}, "training.loss.type vespo"),
        ({"training": Training(steps=1, world_model=WorldModel(coefficient=0.1))}, "training.worldModel.coefficient"),
        ({"training": Training(steps=1, lora=Lora(rank=0))}, "training.lora.rank 0"),
        ({"training": Training(steps=1, lora=Lora(alpha=8.0))}, "training.lora.alpha"),
        ({"training": Training(steps=1, lora=Lora(dropout=0.1))}, "training.lora.dropout"),
        ({"training": Training(steps=1, lora=Lora(target_modules="q_proj"))}, "training.lora.targetModules"),
        ({"model": Model(name="m", quantization="nf4")}, "model.quantization nf4"),
        ({"inference": Inference(engine="fast")}, "inference.engine fast"),
    ],
)
def test_the_tinker_backend_refuses_what_the_service_would_leave_out(
    changes: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    check(run_with())
    with pytest.raises(TrainerError, match=f"the tinker backend cannot do {named}; use the backend trl"):
        check(run_with(**changes))


def test_the_tinker_backend_requires_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(TrainerError, match="TINKER_API_KEY is not set"):
        check(run_with())
