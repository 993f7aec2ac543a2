"""The manifests that people copy are valid, and the shapes have the ranks that they promise."""

from pathlib import Path

import pytest
import yaml

from clotho.api.environment import Environment
from clotho.api.environment import parse as environment_of
from clotho.api.training_run import TrainingRun, parse
from clotho.api.validation import problems
from clotho.plan.run.entries import entry_problems
from clotho.render.needs import needs_of, needs_problems
from clotho.render.settings import RenderSettings

EXAMPLES = Path(__file__).parents[3] / "examples"


def runs_in(path: Path) -> list[TrainingRun]:
    bodies = [body for body in yaml.safe_load_all(path.read_text()) if body["kind"] == "TrainingRun"]
    found = [parse(body) for body in bodies]
    assert all(isinstance(run, TrainingRun) for run in found), found
    return [run for run in found if isinstance(run, TrainingRun)]


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_runs_of_the_examples_are_valid(path: Path) -> None:
    assert [problem for run in runs_in(path) for problem in problems(run.metadata.name, run.spec)] == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_environments_of_the_examples_can_be_used(path: Path) -> None:
    """Their entries exist, and what they reach is public."""
    for run in runs_in(path):
        assert list(entry_problems(run.spec, ())) == []
    bodies = [body for body in yaml.safe_load_all(path.read_text()) if body["kind"] == "Environment"]
    for environment in map(environment_of, bodies):
        assert isinstance(environment, Environment)
        assert list(needs_problems("", needs_of(environment.spec), RenderSettings())) == []


def test_the_image_of_ones_own_can_start_from_any_registry_and_has_the_file_that_its_environment_names() -> None:
    folder = EXAMPLES / "own-environment"
    lines = [line for line in (folder / "image" / "Containerfile").read_text().splitlines() if line[:1] != "#"]
    assert lines[:2] == [f"ARG PARENT={RenderSettings().images.environment}", "FROM ${PARENT}"]
    _, source, target = lines[2].split()
    assert (folder / source).is_file(), "the context is the folder of both examples"
    assert yaml.safe_load((folder / "image" / "environment.yaml").read_text())["spec"]["entry"] == target


@pytest.mark.parametrize(
    ("shape", "ranks"),
    [("one-gpu", 1), ("eight-gpus", 8), ("two-nodes", 16), ("three-cpu-ranks", 3), ("inference-replicas", 1)],
)
def test_every_shape_has_its_ranks(shape: str, ranks: int) -> None:
    (run,) = runs_in(EXAMPLES / "shapes" / f"{shape}.yaml")
    assert run.spec.topology.size == ranks


def test_every_directory_has_a_line_in_the_readme() -> None:
    lines = (EXAMPLES / "README.md").read_text()
    directories = [path.name for path in EXAMPLES.iterdir() if path.is_dir()]
    assert [name for name in directories if f"| [{name}]({name}) |" not in lines] == []
    assert [name for name in directories if not list((EXAMPLES / name).rglob("*.yaml"))] == []
