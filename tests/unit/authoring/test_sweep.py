"""Sweeps: which runs a file describes, how they are named, and what is wrong where."""

import re
from typing import Any

import pytest

from clotho.authoring.sweep import SWEEP_LABEL, VALUES_ANNOTATION, SweepError, Variant, expand, parse_sweep

SPEC: dict[str, Any] = {
    "model": {"name": "m"},
    "training": {"steps": 10, "batchSize": 16},
    "environments": [{"name": "echo", "config": {"group_size": 4}}],
}


def variants(parameters: dict[str, Any], **more: Any) -> list[Variant]:
    return expand(parse_sweep({"name": "lr", "spec": SPEC, "parameters": parameters, **more}), SPEC)


def test_a_grid_has_every_combination() -> None:
    made = variants({"training.learningRate": [1e-5, 0.25], "group_size": [4, 8]})
    assert [each.name for each in made] == [
        "lr-learningrate-1e-5-group-size-4",
        "lr-learningrate-1e-5-group-size-8",
        "lr-learningrate-0p25-group-size-4",
        "lr-learningrate-0p25-group-size-8",
    ]
    assert made[1].spec == {
        **SPEC,
        "training": {**SPEC["training"], "learningRate": 1e-5},
        "environments": [{"name": "echo", "config": {"group_size": 8}}],
    }
    metadata = made[1].manifest("lr")["metadata"]
    assert metadata["labels"] == {SWEEP_LABEL: "lr"}
    assert metadata["annotations"] == {VALUES_ANNOTATION: '{"training.learningRate": 1e-05, "group_size": 8}'}


def test_names_are_unique_valid_and_short_whatever_the_values() -> None:
    long = "x" * 80
    made = variants({"mode": ["a/b", "a.b", "A-b", long, long + "y", "Ü", "-1"], "training.seed": [1, 2]})
    names = [each.name for each in made]
    assert len(set(names)) == len(names) == 14
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in names), names
    assert "lr-mode-m1-seed-2" in names


def test_a_random_sweep_stays_in_its_ranges_and_repeats_with_its_seed() -> None:
    parameters = {
        "training.learningRate": {"min": 1e-6, "max": 1e-4, "scale": "log"},
        "training.steps": {"min": 1, "max": 3},
        "training.seed": [1, 2],
    }
    made = variants(parameters, method="random", runs=40)
    assert made == variants(parameters, method="random", runs=40)
    assert made != variants(parameters, method="random", runs=40, seed=1)
    assert len({each.name for each in made}) == 40
    assert {each.values["training.steps"] for each in made} == {1, 2, 3}
    rates = [each.values["training.learningRate"] for each in made]
    assert all(1e-6 <= rate <= 1e-4 for rate in rates)
    assert sum(rate < 1e-5 for rate in rates) > 10, "the lower half of a logarithmic scale"


def test_a_random_sweep_of_few_combinations_has_each_once() -> None:
    made = variants({"training.seed": [1, 2, 3]}, method="random", runs=10)
    assert sorted(each.values["training.seed"] for each in made) == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "path", "text"),
    [
        ({"name": "LR"}, "name", "a letter first"),
        (
            {"parameters": {"training.lerningRate": [1]}},
            "parameters.training.lerningRate",
            "mean training.learningRate",
        ),
        ({"parameters": {"training.seed": 5}}, "parameters.training.seed", "write a list of values"),
        ({"parameters": {"training.seed": []}}, "parameters.training.seed", "the list is empty"),
        ({"parameters": {"training.seed": [1, 1]}}, "parameters.training.seed", "listed twice"),
        ({"parameters": {"training.seed": {"min": 1, "max": 2}}}, "parameters.training.seed", "a grid needs a list"),
        ({"parameters": {"training.seed": {"min": 2, "max": 1}}, "method": "random", "runs": 1}, "", "less than max"),
        (
            {"parameters": {"a": {"min": 0, "max": 1, "scale": "log"}}, "method": "random", "runs": 1},
            "",
            "greater than 0",
        ),
        ({"parameters": {"group_size": [3, 4]}}, "parameters", "run lr-group-size-3: training.batchSize: 16 is not a"),
        ({"parameters": {"training.steps": ["many"]}}, "parameters", "spec.training.steps: must be a whole number"),
        ({"parameters": {}}, "parameters", "at least one field"),
        ({"parameters": {"training.seed": list(range(501))}}, "parameters", "501 combinations; at most 500"),
        ({"method": "random"}, "", "runs of a random sweep: from 1 to 500"),
        ({"runs": 3}, "runs", "one run for each combination"),
        ({"limit": 0}, "limit", "at least 1"),
        ({"paramters": {}}, "paramters", "did you mean parameters?"),
        ({"base": "run.yaml"}, "", "one of them"),
    ],
)
def test_mistakes_are_reported_with_their_field(change: dict[str, Any], path: str, text: str) -> None:
    document = {"name": "lr", "spec": SPEC, "parameters": {"training.seed": [1, 2]}, **change}
    with pytest.raises(SweepError) as error:
        expand(parse_sweep(document), SPEC)
    first = error.value.problems[0]
    assert ".".join(first.path).startswith(path)
    assert text in first.text


def test_a_file_that_is_not_a_sweep_is_refused() -> None:
    with pytest.raises(SweepError, match="a sweep has the fields"):
        parse_sweep(["lr"])
