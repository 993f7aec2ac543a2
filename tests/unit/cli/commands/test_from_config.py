"""`run from-config`: prints or creates a run, and brings along the files that lie beside the config file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho.cli.__main__ import main
from clotho.cli.failure import Exit, Failure
from clotho.cli.files.run_files import read_run_and_maps

FILE = """
model: {name: Qwen/Qwen3-0.6B}
training: {max_steps: 10, reward_model: "rewards:score"}
data: {path: data/train.jsonl}
wandb: {project: grpo}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "My Run.yaml").write_text(FILE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text('{"prompt": "a", "expected": "b"}\n')
    (tmp_path / "rewards.py").write_text("import scale\n\ndef score(output, expected):\n    return scale.one()\n")
    (tmp_path / "scale.py").write_text("def one():\n    return 1\n")
    return tmp_path


def convert(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> list[dict[str, Any]]:
    assert main(["run", "from-config", str(folder / "My Run.yaml"), *words]) == Exit.OK
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_files_beside_the_config_go_into_a_config_map(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, run = convert(capsys, folder)
    assert (files["kind"], sorted(files["data"])) == ("ConfigMap", ["rewards.py", "scale.py", "train.jsonl"])
    assert run["metadata"] == files["metadata"] == {"name": "my-run"}
    assert run["spec"]["inline"]["dataset"] == {"path": "train.jsonl", "configMapName": "my-run"}
    assert run["spec"]["inline"]["code"] == {"configMapName": "my-run"}
    assert run["spec"]["tracking"] == {"wandb": {"project": "grpo", "secretName": "wandb"}}


def test_files_on_a_claim_are_not_copied(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = FILE.replace("path: data/train.jsonl", "path: train.parquet, claim_name: data")
    (folder / "My Run.yaml").write_text(text)
    (folder / "rewards.py").unlink()
    (run,) = convert(capsys, folder, "--name", "other", "--gpus", "0")
    assert run["spec"]["inline"]["dataset"] == {"path": "train.parquet", "claimName": "data"}
    assert run["spec"]["trainer"] == {"gpus": 0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: [", "is not YAML"),
        ("model: {}", "model.name is missing; training.max_steps or"),
        (FILE.replace("max_steps", "max_stepz"), "did you mean max_steps?"),
        (
            FILE.replace("max_steps: 10", "max_steps: 10, batch_size: 100000"),
            "training.batch_size: must be a whole number",
        ),
        (FILE.replace("path: data/train.jsonl", "path: data/train.jsonl, hub: x/y"), "data: give either path or hub"),
        (f"{FILE}---\n{FILE}", "has 2 documents; a config is one"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    text: str, expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "My Run.yaml").write_text(text)
    assert main(["run", "from-config", str(folder / "My Run.yaml")]) == Exit.USAGE
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1


def test_a_dataset_that_is_too_big_needs_a_claim(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "data" / "train.jsonl").write_text("x" * 1_000_000)
    assert main(["run", "from-config", str(folder / "My Run.yaml")]) == Exit.USAGE
    assert "put the data on a volume claim" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("data/train.jsonl", None, "data.path: there is no file "),
        ("data/train.jsonl", "\n", "train.jsonl is empty"),
        ("rewards.py", "def scores(output, expected): ...", "rewards.py has no score; did you mean scores?"),
        ("rewards.py", "def score(", "rewards.py: does not parse: line 1"),
    ],
)
def test_missing_empty_and_invalid_files_are_refused(
    file: str, content: str | None, expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    assert main(["run", "from-config", str(folder / "My Run.yaml")]) == Exit.USAGE
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("code", ["from scale import *", "from scale import one as score", "score = len"])
def test_reward_functions_may_be_imported_or_assigned(
    code: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rewards.py").write_text(code)
    assert len(convert(capsys, folder)) == 2


def test_files_required_in_the_image_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rewards.py").unlink()
    (folder / "My Run.yaml").write_text(FILE.replace("data/train.jsonl", "/nowhere/train.jsonl"))
    assert main(["run", "from-config", str(folder / "My Run.yaml")]) == Exit.OK
    message = capsys.readouterr().err
    assert "no file /nowhere/train.jsonl here; the trainer's image must have it" in message
    assert "the trainer's image must have the module rewards" in message


def test_run_start_takes_a_config_file_as_it_is(folder: Path) -> None:
    run, (files,) = read_run_and_maps(folder / "My Run.yaml")
    assert (run["metadata"]["name"], files["kind"]) == ("my-run", "ConfigMap")
    assert run["spec"]["training"]["steps"] == 10


def test_mistakes_in_a_config_file_given_to_run_start_are_named(folder: Path) -> None:
    (folder / "My Run.yaml").write_text(FILE.replace("max_steps", "max_stepz"))
    with pytest.raises(Failure, match="did you mean max_steps"):
        read_run_and_maps(folder / "My Run.yaml")


def test_a_manifest_is_no_config_of_another_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("apiVersion: clotho.dev/v1alpha1\nkind: TrainingRun\nmetadata: {name: a}\nspec: {}\n")
    assert main(["run", "from-config", str(path)]) == Exit.USAGE
    assert capsys.readouterr().err == (
        f"clotho run from-config: {path} is a TrainingRun, not another trainer's config;"
        f" start it with `clotho run start -f {path}`\n"
    )
