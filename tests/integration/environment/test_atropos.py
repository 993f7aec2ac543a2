"""Unchanged Atropos environment files, run by the real atroposlib in an interpreter of its own."""

import asyncio
import json
import signal
import socket
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from integration.environment.commands import ENVIRONMENTS, command, write_run
from integration.environment.stand_ins import TOKEN, ApiServerStandIn, InferenceStandIn, started
from rig.trajectory_servers import ToolUnavailableError, atropos_python

LETTERS = ENVIRONMENTS / "atropos_letters.py"
CHAT = ENVIRONMENTS / "atropos_chat.py"
CONFIG = {"group_size": 4, "ensure_scores_are_not_same": False, "steps_per_eval": 5, "min_items_sent_before_logging": 0}


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return atropos_python()
    except ToolUnavailableError as error:
        pytest.skip(f"atroposlib cannot be installed here: {error}")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    """A token is an ASCII character and its id the character's code, as the stand-in has it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.WordLevel({chr(i): i for i in range(128)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "\x03", "unk_token": "?"}
    config["chat_template"] = "{% for message in messages %}{{ message.content }}>{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def variables(python, tokenizer):
    return {"CLOTHO_ATROPOS_PYTHON": str(python), "CLOTHO_TOKENIZER": str(tokenizer), "HF_HUB_OFFLINE": "1"}


@pytest.fixture
async def run():
    stand_ins = ApiServerStandIn(), InferenceStandIn()
    async with started(*stand_ins):
        yield stand_ins


def serve(folder, run, file, variables, steps):
    api_server, inference = run
    write_run(
        folder, api_server=api_server.url, inference=inference.url, entry=f"atropos:{file}", steps=steps, **CONFIG
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return command(folder, "serve", "--port", str(port), variables=variables)


def children_of(pid: int) -> list[Path]:
    return [Path("/proc", child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def only_child(pid: int) -> Path:
    (child,) = children_of(pid)
    return child


async def test_environment_survives_an_outage_and_reaches_the_last_step(tmp_path, run, variables):
    api_server, _ = run
    async with serve(tmp_path, run, LETTERS, variables, steps=40) as running:
        await api_server.groups_reach(5)
        await api_server.stop()  # atroposlib by itself would give up within seconds
        api_server.known.clear()
        await api_server.start()
        assert await running.wait() == 0, running.log
    assert running.termination_message["reason"] == "Finished"
    assert running.termination_message["step"] >= 40
    assert api_server.registrations[0]["desired_name"] == "env"
    group = api_server.groups[-1]
    assert group["scores"] == [1.0] * 4
    assert group["generation_params"] == {"policy_version": 3}
    assert {len(field[0]) for field in (group["tokens"], group["masks"], group["inference_logprobs"])} == {10}
    assert api_server.deregistrations == [len(api_server.registrations)]
    evaluated = {tuple(each["figures"].items()) for each in api_server.evaluations}
    assert evaluated == {(("accuracy", 0.5),), (("eval/percent_correct", 0.75),)}
    assert {each["environment"] for each in api_server.evaluations} == {"env"}
    assert TOKEN not in running.log
    assert len(running.log.splitlines()) < 40, "twenty lines a second are not for people"


async def test_a_stop_reaches_the_child(tmp_path, run, variables):
    api_server, _ = run
    async with serve(tmp_path, run, LETTERS, variables, steps=10**6) as running:
        await api_server.groups_reach(1)
        child = only_child(running.process.pid)
        environment = (child / "environ").read_bytes()
        running.terminate()
        assert await running.wait() == 0, running.log
    assert running.termination_message["reason"] == "Stopped"
    assert not child.exists()
    assert api_server.deregistrations == [1]
    assert TOKEN.encode() not in environment, "untrusted code does not get the run's token"


async def test_rollouts_that_always_fail_end_it(tmp_path, run, variables):
    async with serve(tmp_path, run, ENVIRONMENTS / "atropos_broken.py", variables, steps=5) as running:
        assert await running.wait() == 1, running.log
    assert running.termination_message["reason"] == "EnvironmentFailed"
    assert "Error in collect_trajectories: 'answer'" in running.termination_message["message"]


async def test_a_refused_token_ends_it(tmp_path, run, variables):
    api_server, _ = run
    async with serve(tmp_path, run, LETTERS, variables | {"CLOTHO_TOKEN": "outdated"}, steps=50) as running:
        assert await running.wait() == 1
    assert running.termination_message["reason"] == "Unauthorized"
    assert running.termination_message["message"] == f"{api_server.url} refuses our token (401)"


async def test_refused_groups_end_the_process_with_the_servers_message(tmp_path, run, variables):
    api_server, _ = run
    api_server.refusal = "masks[0]: longer than tokens[0]"
    async with serve(tmp_path, run, LETTERS, variables, steps=50) as running:
        assert await running.wait() == 1, running.log
    assert running.termination_message["reason"] == "EnvironmentFailed"
    assert running.termination_message["message"].endswith(
        "groups in a row were refused; the last: 422 " + api_server.refusal
    )


async def test_groups_that_cannot_be_sent_end_it(tmp_path, run, variables):
    """Atropos only logs it: `Failed to send single ScoredDataGroup after retries`."""
    text = LETTERS.read_text().replace("return group, []", "return {**group, 'images': object()}, []")
    (tmp_path / "unsendable.py").write_text(text)
    async with serve(tmp_path, run, tmp_path / "unsendable.py", variables, steps=50) as running:
        assert await running.wait() == 1, running.log
    assert running.termination_message["reason"] == "EnvironmentFailed"
    assert "Failed to send single ScoredDataGroup" in running.termination_message["message"]


async def test_conversations_are_tokenized_to_plain_lists(tmp_path, run, variables):
    """transformers 5 returns an object there that cannot be sent as JSON; transformers 4 returned a list."""
    api_server, inference = run
    inference.reply = lambda prompt: prompt
    async with serve(tmp_path, run, CHAT, variables, steps=2) as running:
        assert await running.wait() == 0, running.log
    assert running.termination_message["reason"] == "Finished"
    group = api_server.groups[0]
    assert "".join(map(chr, group["tokens"][0])) in ("red>red>", "green>green>", "blue>blue>")
    assert group["masks"][0].count(-100) == len(group["tokens"][0]) // 2
    assert group["scores"] == [1.0] * 4


async def test_a_file_that_does_not_start_is_quoted(tmp_path, run, variables):
    broken = tmp_path / "no_start.py"
    broken.write_text("raise RuntimeError('no such dataset')\n")
    async with serve(tmp_path, run, broken, variables, steps=5) as running:
        assert await running.wait() == 1, running.log
    assert running.termination_message["reason"] == "EnvironmentFailed"
    assert running.termination_message["message"] == "no_start.py ended with code 1: RuntimeError: no such dataset"


async def test_a_file_that_starts_nothing_is_not_started_for_ever(tmp_path, run, variables):
    idle = tmp_path / "idle.py"
    idle.touch()
    async with serve(tmp_path, run, idle, variables, steps=5) as running:
        assert await running.wait() == 1, running.log
    assert running.termination_message["reason"] == "EnvironmentFailed"
    assert running.termination_message["message"].startswith("idle.py ended without registering; does it call cli()")


@pytest.mark.parametrize("has_tokens", [True, False])
async def test_process_writes_groups_with_and_without_tokens(tmp_path, run, variables, has_tokens):
    _, inference = run
    arguments = ["process", "--entry", f"atropos:{LETTERS}", "--base-url", inference.url + "/v1", "--model", "m"]
    arguments += ["--set", "group_size=2", "--groups", "2", *(["--tokens"] if has_tokens else [])]
    async with command(tmp_path, *arguments, variables=variables) as running:
        assert await running.wait() == 0, running.log
    groups = [json.loads(line) for line in running.output.splitlines()]
    assert [len(group["scores"]) for group in groups] == [2, 2]
    assert (inference.requests.count("/generate") > 0) == has_tokens
    assert TOKEN not in running.log


async def test_process_respects_its_deadline(tmp_path, run, variables):
    _, inference = run
    await inference.stop()
    arguments = ["process", "--entry", f"atropos:{LETTERS}", "--base-url", inference.url, "--deadline", "1"]
    async with command(tmp_path, *arguments, variables=variables) as running:
        assert await running.wait() == 1
    assert running.termination_message["message"].startswith("the deadline of 1 s passed")
    assert running.termination_message["message"].endswith("0 of 3 groups were written")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_process_ends_its_child_and_fails(tmp_path, run, variables, number):
    _, inference = run
    await inference.stop()  # so that it never finishes by itself
    arguments = ["process", "--entry", f"atropos:{LETTERS}", "--base-url", inference.url]
    async with command(tmp_path, *arguments, variables=variables) as running:
        while not (children := children_of(running.process.pid)):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
        running.process.send_signal(number)
        assert await running.wait() == 130, running.log
    assert running.termination_message["reason"] == "Stopped"
    assert not any(child.exists() for child in children)


async def test_describe_reports_the_config_fields(tmp_path, variables):
    async with command(tmp_path, "describe", "--entry", f"atropos:{LETTERS}", variables=variables) as running:
        assert await running.wait() == 0, running.log
    description = json.loads(running.output)
    fields = {field["name"]: field for field in description["fields"]}
    assert (description["name"], description["className"]) == ("atropos_letters", "LettersEnv")
    assert description["description"] == "Write the letter of the prompt again and again."
    assert fields["letters"]["description"] == "Each letter is a task."
    assert (fields["group_size"]["default"], fields["group_size"]["type"]) == (8, "integer")
    assert "fixed" not in fields["group_size"]
    assert fields["eval_handling"]["default"] == "STOP_TRAIN"
    assert "STOP_TRAIN" in fields["eval_handling"]["enum"]
    assert fields["rollout_server_url"]["fixed"]


async def test_of_several_classes_the_one_that_the_file_starts_is_described(tmp_path, variables):
    text = LETTERS.read_text().replace("if __name__", "class Unused(LettersEnv):\n    pass\n\n\nif __name__")
    (tmp_path / "two.py").write_text(text)
    async with command(tmp_path, "describe", "--entry", f"atropos:{tmp_path}/two.py", variables=variables) as running:
        assert await running.wait() == 0, running.log
    assert json.loads(running.output)["className"] == "LettersEnv"


async def test_describe_imports_the_files_neighbours(tmp_path, variables):
    """Also those whose names are modules of ours."""
    (tmp_path / "config.py").write_text("GROUP_SIZE = 3\n")
    text = LETTERS.read_text().replace("group_size=8", "group_size=config.GROUP_SIZE")
    (tmp_path / "letters_server.py").write_text(text.replace("import random", "import random\n\nimport config"))
    entry = f"atropos:{tmp_path}/letters_server.py"
    async with command(tmp_path, "describe", "--entry", entry, variables=variables) as running:
        assert await running.wait() == 0, running.log
    fields = {field["name"]: field for field in json.loads(running.output)["fields"]}
    assert fields["group_size"]["default"] == 3


async def test_an_environment_whose_config_init_fails_is_described_by_its_config_class(tmp_path, variables):
    text = LETTERS.read_text().replace("return LettersConfig(group_size=8)", "return {}['HF_TOKEN']")
    (tmp_path / "needy.py").write_text(text)
    async with command(tmp_path, "describe", "--entry", f"atropos:{tmp_path}/needy.py", variables=variables) as running:
        assert await running.wait() == 0, running.log
    fields = {field["name"]: field for field in json.loads(running.output)["fields"]}
    assert fields["letters"]["default"] == "abcdefgh"
    assert fields["group_size"]["default"] == 4


async def test_a_config_that_cannot_be_made_is_described_by_its_class(tmp_path, variables):
    text = LETTERS.read_text().replace("class LettersConfig", "@dataclasses.dataclass\nclass LettersConfig")
    (tmp_path / "odd.py").write_text("import dataclasses\n" + text)
    async with command(tmp_path, "describe", "--entry", f"atropos:{tmp_path}/odd.py", variables=variables) as running:
        assert await running.wait() == 0, running.log
    fields = {field["name"]: field for field in json.loads(running.output)["fields"]}
    assert fields["letters"]["description"] == "Each letter is a task."
    assert fields["group_size"]["default"] == 4


async def test_describing_a_file_without_an_environment_fails(tmp_path, variables):
    empty = tmp_path / "empty.py"
    empty.touch()
    async with command(tmp_path, "describe", "--entry", f"atropos:{empty}", variables=variables) as running:
        assert await running.wait() == 1
    assert running.termination_message["message"].endswith("empty.py has no subclass of BaseEnv")
