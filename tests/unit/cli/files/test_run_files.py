"""Files with runs: what is read, and one sentence for what cannot be."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from clotho.authoring.changes import spec_problems
from clotho.cli.failure import Failure
from clotho.cli.files.changes import read_change
from clotho.cli.files.documents import load_all
from clotho.cli.files.run_files import read_run, read_run_and_maps

RUN = "kind: TrainingRun\nmetadata: {name: mine}\nspec: {}\n"
FILES = "kind: ConfigMap\nmetadata: {name: words}\ndata: {a: b}\n"
ENVIRONMENT = "kind: Environment\nmetadata: {name: sums}\n"


def refusal(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(Failure) as failure:
        read_run_and_maps(path)
    return str(failure.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod", "run.yaml contains Pod, but no TrainingRun"),
        (f"{FILES}---\n{ENVIRONMENT}", "run.yaml contains ConfigMap words and Environment sums, but no TrainingRun"),
        ("- 1", "run.yaml contains something other than a Kubernetes object, but no TrainingRun"),
        ("", "run.yaml contains nothing, but no TrainingRun"),
        (f"{RUN}---\n{RUN}", "contains TrainingRun mine and TrainingRun mine; it can contain one TrainingRun"),
        ("kind: TrainingRun", "has no spec"),
        ("a: 1\nb: [", "run.yaml is not YAML: line 2, column 5: "),
        ("a: 2026-13-99", "run.yaml is not YAML: month must be in 1..12"),
        (f"apiVersion: clotho.dev/v1\n{RUN}", "apiVersion clotho.dev/v1 is unknown; use clotho.dev/v1alpha1"),
        (
            f"{RUN}---\n{FILES}---\n{ENVIRONMENT}",
            "run.yaml also contains Environment sums; create all of it",
        ),
        (f"{RUN}---\nkind: ConfigMap", "run.yaml also contains ConfigMap; create all of it with kubectl"),
    ],
)
def test_unreadable_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    answer_text = refusal(tmp_path / "run.yaml", text)
    assert message in answer_text
    assert "\n" not in answer_text


def test_config_maps_in_the_file_are_read_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"{FILES}---\n{RUN}---\n")
    run, (files,) = read_run_and_maps(tmp_path / "run.yaml")
    assert (run["metadata"]["name"], files["data"]) == ("mine", {"a": "b"})


def test_errors_name_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(ENVIRONMENT))
    with pytest.raises(Failure) as failure:
        read_run(Path("-"))
    assert str(failure.value) == "standard input contains Environment sums, but no TrainingRun"


def test_spec_problems_have_a_path_and_a_suggestion() -> None:
    assert spec_problems("mine", {"model": {"name": "m"}, "training": {"stepz": 80}}) == (
        "spec.training.stepz: no such field; did you mean steps?",
    )


@pytest.mark.parametrize(
    ("text", "value"), [("1e-5", 1e-5), ("4E3", 4000.0), ("-1.e2", -100.0), ("'1e-5'", "1e-5"), ("1e", "1e")]
)
def test_numbers_are_read_as_kubectl_reads_them(text: str, value: object) -> None:
    assert load_all(text) == [value]
    assert read_change(f"training.learningRate={text}") == ("training.learningRate", value)
