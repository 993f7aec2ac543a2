"""A config against the fields that an environment has described: all that is wrong, at once, in words that help."""

from typing import Any

import pytest

from clotho.authoring.config_fields import problems
from clotho_contract.description import ConfigField

FIELDS = (
    ConfigField(name="group_size", type="integer", default=4, minimum=1),
    ConfigField(name="temperature", type="number | null", exclusive_minimum=0, maximum=10),
    ConfigField(name="letters", type="string", min_length=1, max_length=26),
    ConfigField(name="words", type="array", min_length=1),
    ConfigField(name="options", type="object"),
    ConfigField(name="shuffle", type="boolean"),
    ConfigField(name="mode", type="string", enum=("train", "test")),
    ConfigField(name="task", type="string", required=True),
    ConfigField(name="tokenizer_name", type="string", fixed=True),
    ConfigField(name="level", type="integer", default=2, fixed=True),
    ConfigField(name="odd", type="SomeClass"),
)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"group_size": 8, "temperature": None},
        {"temperature": 1, "letters": "abc", "words": ["a"], "options": {"a": 1}, "shuffle": False},
        {"mode": "test", "odd": [1, {"anything": "goes"}]},
    ],
)
def test_valid_configs_have_no_problems(config: dict[str, Any]) -> None:
    assert problems({"task": "x", **config}, FIELDS) == ()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"group_size": "8"}, 'config.group_size: "8" is not of type integer'),
        ({"group_size": True}, "config.group_size: true is not of type integer"),
        ({"group_size": 1.5}, "config.group_size: 1.5 is not of type integer"),
        ({"group_size": 0}, "config.group_size: 0 is below 1"),
        ({"temperature": 0}, "config.temperature: 0 is not greater than 0"),
        ({"temperature": 11}, "config.temperature: 11 is above 10"),
        ({"temperature": "hot"}, 'config.temperature: "hot" is not of type number | null'),
        ({"letters": ""}, 'config.letters: "" is shorter than 1'),
        ({"letters": "a" * 27}, f'config.letters: "{"a" * 27}" is longer than 26'),
        ({"words": []}, "config.words: [] is shorter than 1"),
        ({"mode": "play"}, 'config.mode: "play" is not one of "train", "test"'),
        ({"tokenizer_name": "x"}, "config.tokenizer_name: it is decided by the run (model.name) and cannot be set"),
        ({"level": 3}, "config.level: it is locked to 2, which the entry decides"),
        (
            {"grup_size": 8},
            "config.grup_size: unknown field; did you mean group_size? Known fields: group_size, letters, mode, odd, "
            "options, shuffle, task, temperature, words",
        ),
        (
            {"zzz": 1},
            "config.zzz: unknown field; known fields: group_size, letters, mode, odd, options, shuffle, task, "
            "temperature, words",
        ),
    ],
)
def test_invalid_configs_are_reported_with_the_field(config: dict[str, Any], words: str) -> None:
    assert problems({"task": "x", **config}, FIELDS) == (words,)


def test_fields_set_by_the_run_are_shown_with_their_value() -> None:
    (problem,) = problems({"task": "x", "tokenizer_name": "mine"}, FIELDS, written={"tokenizer_name": "Qwen/Qwen3-8B"})
    assert problem == 'config.tokenizer_name: it is decided by the run (model.name) and locked to "Qwen/Qwen3-8B"'


def test_a_field_without_a_default_must_be_given() -> None:
    assert problems({}, FIELDS) == ("config.task: missing; it has no default",)


def test_everything_is_reported_at_once() -> None:
    assert len(problems({"group_size": 0, "leters": "a", "mode": 3}, FIELDS)) == 4


def test_the_known_fields_are_listed_once() -> None:
    first, second = problems({"task": "x", "leters": "a", "zzz": 1}, FIELDS)
    assert "did you mean letters? Known fields: group_size, " in first
    assert second == "config.zzz: unknown field"


def test_unknown_names_may_be_among_the_fields_that_were_left_out() -> None:
    assert problems({"task": "x", "something": 1}, FIELDS, omitted=3) == ()


def test_long_values_are_not_repeated_in_full() -> None:
    (problem,) = problems({"task": "x", "group_size": "9" * 10_000}, FIELDS)
    assert len(problem) < 150
