"""The config of an Atropos environment, its output, and the policy versions of its groups."""

import logging
from pathlib import Path

import pytest
import yaml

from clotho_contract.config import Endpoints, EnvironmentConfig, RunConfig, RunIdentity
from clotho_contract.settings import Model, Training
from clotho_environment.atropos.child import ChildOutput
from clotho_environment.atropos.config import INFRASTRUCTURE, render_process, render_serve, to_yaml
from clotho_environment.atropos.versions import VersionMemory

RUN = RunConfig(
    run=RunIdentity(name="run", namespace="default", id="r1"),
    endpoints=Endpoints(api_server="http://api:8000", inference="http://trainer:8001"),
    model=Model(name="Qwen/Qwen3-8B"),
    training=Training(steps=50, max_tokens=4096, max_off_policy_batches=2),
)


def render(min_batch_allocation: float | None = 0.25, **config):
    place = EnvironmentConfig(name="gsm8k", weight=2.0, min_batch_allocation=min_batch_allocation, config=config)
    rendered = render_serve(
        RUN, place, api_server="http://127.0.0.1:1/api", inference="http://127.0.0.1:1/inference", tokenizer=Path("/t")
    )
    return yaml.safe_load(to_yaml(rendered))


class TestServeConfig:
    def test_no_allocation_is_left_out_because_some_environments_allow_no_null(self):
        assert "min_batch_allocation" not in render(min_batch_allocation=None)["env"]

    def test_the_run_decides_its_own_fields(self):
        env = render(group_size=16, total_steps=9999, rollout_server_url="http://elsewhere", tokenizer_name="gpt2")[
            "env"
        ]
        assert env == {
            "use_wandb": False,
            "max_token_length": 4096,
            "group_size": 16,
            "rollout_server_url": "http://127.0.0.1:1/api",
            "tokenizer_name": "/t",
            "total_steps": 50,
            "max_batches_offpolicy": 2,
            "inference_weight": 2.0,
            "min_batch_allocation": 0.25,
            "wandb_name": "gsm8k",
        }
        assert set(env) >= INFRASTRUCTURE

    def test_wandb_and_token_length_come_from_the_user(self):
        env = render(use_wandb=True, max_token_length=512)["env"]
        assert (env["use_wandb"], env["max_token_length"]) == (True, 512)

    def test_the_server_is_listed_twice_and_without_any_key(self):
        servers = render()["openai"]
        assert servers[0] == servers[1]
        assert servers[0]["base_url"] == "http://127.0.0.1:1/inference/v1"
        assert (servers[0]["server_type"], servers[0]["tokenizer_name"]) == ("sglang", "/t")
        assert servers[0]["api_key"] == "kept-by-the-gateway"


@pytest.mark.parametrize(("has_tokens", "server_type"), [(True, "sglang"), (False, "openai")])
def test_process_config_selects_the_server_type(has_tokens, server_type):
    config = render_process(
        {"group_size": 4, "tokenizer_name": "mine"},
        inference="http://127.0.0.1:1/inference",
        model="some/model",
        has_tokens=has_tokens,
        groups=3,
        output=Path("/tmp/groups.jsonl"),
        tokenizer=None,
    )
    assert config["env"] == {
        "group_size": 4,
        "tokenizer_name": "mine",
        "use_wandb": False,
        "total_steps": 3,
        "data_path_to_save_groups": "/tmp/groups.jsonl",
    }
    assert {server["server_type"] for server in config["openai"]} == {server_type}
    assert "tokenizer_name" not in config["openai"][0]


class TestVersionMemory:
    def test_a_group_is_as_old_as_its_oldest_answer(self):
        memory = VersionMemory()
        memory.remember([1, 2], 5)
        memory.remember([3], 4)
        assert memory.oldest([[-100, 1, 2], [-100, 3]]) == 4

    def test_each_turn_of_a_conversation_is_looked_up(self):
        memory = VersionMemory()
        memory.remember([1, 2], 5)
        memory.remember([7], 6)
        assert memory.oldest([[-100, 1, 2, -100, -100, 7]]) == 5

    def test_unknown_answers_have_no_version(self):
        assert VersionMemory().oldest([[-100, 1]]) is None

    def test_the_oldest_answers_are_forgotten_first(self):
        memory = VersionMemory(capacity=2)
        for token in (1, 2, 3):
            memory.remember([token], token)
        assert [memory.oldest([[token]]) for token in (1, 2, 3)] == [None, 2, 3]


class TestChildOutput:
    def read(self, *lines):
        output = ChildOutput()
        for line in lines:
            output.add(line + "\n")
        return output

    def test_status_lines_of_the_child_are_not_logged(self, caplog):
        with caplog.at_level(logging.DEBUG):
            self.read(
                "INFO:base:env_manager: Status dict: {'current_step': 3}",
                "INFO:base:max_num_workers: 8, queue size: 3",
                "APIServerConfig(",
                "    api_key='x',",
                "]",
                "",
            )
        assert caplog.records == []

    def test_repeated_lines_are_logged_with_a_count(self, caplog):
        with caplog.at_level(logging.DEBUG):
            self.read(*(f"WARNING: worker {i} timed out" for i in range(9)))
        assert [getattr(record, "repeated", 1) for record in caplog.records] == [1, 2, 4, 8]
        assert {record.levelname for record in caplog.records} == {"WARNING"}

    def test_failed_rollouts_are_counted(self):
        output = self.read("ERROR:root:Error in collect_trajectories: 'answer'", "all is well")
        assert output.failures == 1
        assert "'answer'" in output.last_failure

    def test_last_line_of_the_output_is_kept(self):
        assert (
            self.read("Traceback (most recent call last):", "ValueError: no data").last_line() == "ValueError: no data"
        )
        assert self.read().last_line() == "no output"
