"""Drafts: what can be set, what is refused at once, and what only the whole shows."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from clotho.api import environment, training_policy
from clotho.api.environment import Environment
from clotho.api.policy import combine
from clotho.authoring.draft import Draft, RefusedEditError
from clotho.authoring.run_decided import DECIDED_BY, DEFAULT_FROM
from clotho.authoring.run_fields import run_fields, value_in, with_value
from clotho_contract.config import EnvironmentConfig, RunConfig, RunIdentity
from clotho_contract.settings import Model, Training
from clotho_environment.atropos.config import INFRASTRUCTURE, render_serve
from rig.fake_api import described


def echo(config: dict[str, Any] | None = None, entry: str = "echo.py", **status: Any) -> Environment:
    spec = {"entry": entry, "config": config or {}}
    found = environment.parse({"metadata": {"name": "echo"}, "spec": spec, "status": described(**status)})
    assert isinstance(found, Environment)
    return found


def draft(*policies: dict[str, Any], **changes: Any) -> Draft:
    parsed = [training_policy.parse({"metadata": {"name": f"p{n}"}, "spec": spec}) for n, spec in enumerate(policies)]
    return Draft(environment=echo(**changes), policy=combine(parsed))


def ready_draft(*policies: dict[str, Any]) -> Draft:
    return draft(*policies).edit("model.name", "Qwen/Qwen3-8B").edit("training.steps", 100)


def test_edits_become_the_spec_of_a_run() -> None:
    made = ready_draft().edit("temperature", 0.5).edit("training.lora.rank", 8).edit("environment.replicas", 3)
    assert made.problems("r") == ()
    assert made.run_spec() == {
        "model": {"name": "Qwen/Qwen3-8B"},
        "training": {"steps": 100, "lora": {"rank": 8}},
        "environments": [
            {
                "name": "echo",
                "environmentName": "echo",
                "config": {"group_size": 16, "temperature": 0.5},
                "replicas": 3,
            }
        ],
    }


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("group_size", 0, "0 is below 1"),
        ("group_size", "many", '"many" is not of type integer'),
        ("group_size", True, "true is not of type integer"),
        ("temperature", 11, "11 is above 10"),
        ("mode", "medium", '"medium" is not one of "easy", "hard"'),
        ("rollout_server_url", "http://elsewhere", "cannot be set"),
        ("group_sizes", 4, "did you mean group_size?"),
        ("training.step", 4, "did you mean training.steps"),
        ("training.steps", 0, "0 is below 1"),
        ("training.learningRate", 2, "2 is above 1"),
        ("training.learningRate", 0, "0 is not greater than 0"),
        ("training.backend", "jax", 'is not one of "tinker", "trl"'),
        ("suspend", True, "there is no field suspend"),
        ("inline.dataset.path", "x", "there is no field inline.dataset.path"),
    ],
)
def test_wrong_edits_are_refused_at_once(name: str, value: Any, problem: str) -> None:
    with pytest.raises(RefusedEditError) as refused:
        draft().edit(name, value)
    assert problem in str(refused.value)


def test_an_unknown_field_is_reported_with_the_known_ones() -> None:
    with pytest.raises(RefusedEditError) as refused:
        draft().edit("nonsense", 1)
    available = refused.value.details["available_fields"]
    assert {"group_size", "training.steps", "environment.replicas"} <= set(available)
    assert "rollout_server_url" not in available


def test_unknown_names_are_accepted_where_described_fields_were_omitted() -> None:
    assert draft(omittedFields=3).edit("unheard_of", 1).config == {"unheard_of": 1}
    with pytest.raises(RefusedEditError):
        draft(omittedFields=3).edit("training.unheardOf", 1)


def test_numbers_as_text_are_understood_where_text_cannot_be_meant() -> None:
    assert draft().edit("group_size", "32").config == {"group_size": 32}
    assert value_in(draft().edit("model.name", "7").spec, "model.name") == "7"
    with pytest.raises(RefusedEditError):
        draft().edit("group_size", "[" * 10_000)


def test_locked_fields_are_refused_with_their_value_and_may_be_left_out() -> None:
    policy = {"locked": {"model": {"name": "Qwen/Qwen3-8B"}, "training": {"steps": 2500}}}
    config = {"locked": {"environmentConfig": {"group_size": 32, "use_wandb": True}}}
    locked = draft(policy, config)
    for name, value in (("training.steps", 2500), ("group_size", 32)):
        with pytest.raises(RefusedEditError) as refused:
            locked.edit(name, 7)
        assert refused.value.details == {"locked_value": value}
        assert f"locked to {value}" in str(refused.value)
    settings = {each.field.name: each for each in locked.settings()}
    assert settings["group_size"].is_locked
    assert settings["group_size"].value == 32
    assert settings["use_wandb"].is_locked
    assert settings["rollout_server_url"].is_locked
    assert not settings["temperature"].is_locked
    assert locked.problems("r") == ()
    assert locked.run_spec() == {
        "model": {"name": "Qwen/Qwen3-8B"},
        "training": {"steps": 2500},
        "environments": [{"name": "echo", "environmentName": "echo", "config": {}}],
    }


ATROPOS = [
    {"name": "total_steps", "type": "integer", "default": 1000, "fixed": True},
    {"name": "tokenizer_name", "type": "string", "default": "the-environments-own", "fixed": True},
    {"name": "max_batches_offpolicy", "type": "integer", "default": 99, "fixed": True},
    {"name": "inference_weight", "type": "number", "default": 7.0, "fixed": True},
    {"name": "wandb_name", "type": "string", "default": None, "fixed": True},
    {"name": "rollout_server_url", "type": "string", "default": "http://localhost:8000", "fixed": True},
    {"name": "max_token_length", "type": "integer", "default": 2048},
]


def atropos_draft(*policies: dict[str, Any]) -> Draft:
    made = draft(*policies, entry="atropos:/app/echo.py", fields=ATROPOS)
    return made.edit("model.name", "Qwen/Qwen3-8B").edit("training.steps", 100)


@pytest.mark.parametrize(
    ("name", "value", "decided_by"),
    [
        ("total_steps", 100, "training.steps"),
        ("tokenizer_name", "Qwen/Qwen3-8B", "model.name"),
        ("max_batches_offpolicy", 3, "training.maxOffPolicyBatches"),
        ("inference_weight", 1.0, "environments[].weight"),
        ("wandb_name", "echo", "environments[].name"),
        ("rollout_server_url", None, "the address of its API server"),
    ],
)
def test_fields_set_by_the_run_are_shown_and_cannot_be_edited(name: str, value: Any, decided_by: str) -> None:
    made = atropos_draft({"locked": {"environmentConfig": {"total_steps": 5}}})  # which has no effect
    (setting,) = [each for each in made.settings() if each.field.name == name]
    assert (setting.value, setting.decided_by, setting.is_locked) == (value, decided_by, True)
    with pytest.raises(RefusedEditError) as refused:
        made.edit(name, 7)
    assert refused.value.details == {"locked_value": value}
    assert f"it is decided by the run ({decided_by})" in str(refused.value)
    if value is not None:
        assert f"locked to {msgspec.json.encode(value).decode()}" in str(refused.value)


def test_defaults_written_by_the_run_are_shown() -> None:
    made = atropos_draft()
    shown = made.fields()["max_token_length"]
    assert made.value(shown) == 9000, "training.maxTokens"
    assert made.edit("training.maxTokens", 4000).value(shown) == 4000
    assert made.edit("max_token_length", 512).value(shown) == 512
    assert draft(fields=ATROPOS).value(shown) == 2048, "which only Atropos' own are given"


def test_fields_set_by_the_run_match_those_of_the_environment_image() -> None:
    assert set(DECIDED_BY) == INFRASTRUCTURE
    run = RunConfig(
        run=RunIdentity(name="r", namespace="n", id="i"),
        model=Model(name="m"),
        training=Training(steps=1, max_tokens=77),
    )
    rendered = render_serve(run, EnvironmentConfig(name="e"), api_server="", inference="", tokenizer=Path("t"))
    assert {name: rendered["env"][name] for name in DEFAULT_FROM} == {"max_token_length": 77}


def test_missing_fields_are_reported_at_once() -> None:
    assert draft().problems("r") == ("model.name is missing", "training.steps is missing")


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ({"training.batchSize": 40}, "training.batchSize: 40 is not a multiple of group_size 16"),
        ({"training.batchSize": 40, "group_size": 8}, None),
        ({"training.backend": "tinker"}, "trainer.tinkerSecretName is needed"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(edits: dict[str, Any], problem: str | None) -> None:
    made = ready_draft()
    for name, value in edits.items():
        made = made.edit(name, value)
    assert any(problem in each for each in made.problems("r")) if problem else made.problems("r") == ()


def test_limits_of_a_policy_apply_to_drafts() -> None:
    (problem,) = ready_draft({"limits": {"steps": 50}}).problems("r")
    assert "training.steps: 100 is more than 50" in problem


def test_defaults_of_the_environment_apply_to_drafts() -> None:
    made = Draft(environment=echo({"group_size": 5})).edit("model.name", "m").edit("training.steps", 1)
    assert any("group_size 5" in problem for problem in made.problems("r"))
    settings = {each.field.name: each.value for each in made.settings()}
    assert settings["group_size"] == 5


def test_every_field_of_a_run_can_be_set_and_read_again() -> None:
    for name in run_fields():
        assert value_in(with_value({"training": {"seed": 1}}, name, "x"), name) == "x"
    assert with_value({"a": {"b": 1}}, "a.c", 2) == {"a": {"b": 1, "c": 2}}
