"""`process` and `describe`: the quick look at an environment, without trainer or API server."""

import json
import os
import subprocess
import sys

import pytest
from aiohttp import web

from integration.environment.commands import ENVIRONMENTS, SOURCES, command
from integration.environment.stand_ins import InferenceStandIn, started

KEY = "sk-a-key-for-tests"


class PublicServer(InferenceStandIn):
    """As the public ones are: one sample at a time, no token ids, a key of their own."""

    def _stamped(self, answer):
        return web.json_response(answer)


@pytest.fixture
async def inference(monkeypatch):
    monkeypatch.setattr("integration.environment.stand_ins.TOKEN", KEY)
    stand_in = PublicServer(ignores_n=True, has_tokens=False)
    async with started(stand_in):
        yield stand_in


def process(folder, inference, entry, *more):
    arguments = ["--entry", entry, "--base-url", inference.url + "/v1", "--model", "some/model", *more]
    return command(folder, "process", *arguments, variables={"OPENAI_API_KEY": KEY})


async def test_each_group_is_one_line_of_output(tmp_path, inference):
    inference.reply = lambda prompt: prompt[0] * 4
    async with process(tmp_path, inference, "letters", "--groups", "5", "--set", "group_size=3") as running:
        assert await running.wait() == 0, running.log
    lines = [json.loads(line) for line in running.output.splitlines()]
    assert [line["scores"] for line in lines] == [[0.5] * 3] * 5
    assert set(lines[0]["texts"][0]) <= set("abcdefgh")
    assert inference.bodies[0]["model"] == "some/model"
    assert "return_token_ids" not in inference.bodies[0], "servers that do not know it may refuse it"
    assert KEY not in running.log


async def test_tokens_option_requires_token_ids(tmp_path, inference):
    async with process(tmp_path, inference, "letters", "--tokens", "--set", "max_consecutive_failures=1") as running:
        assert await running.wait() == 1
    assert "return_token_ids" in running.termination_message["message"]


async def test_output_is_written_to_a_file(tmp_path, inference):
    output = tmp_path / "groups.jsonl"
    output.write_text("what was there before")
    async with process(tmp_path, inference, "letters", "--output", str(output), "--groups", "1") as running:
        assert await running.wait() == 0, running.log
    assert len(output.read_text().splitlines()) == 1
    assert running.output == b""


@pytest.mark.parametrize(
    ("name", "more", "reason", "message"),
    [
        ("Raises", (), "EnvironmentFailed", "ZeroDivisionError: the scorer divides by nothing"),
        ("Hangs", ("--deadline", "0.3"), "EnvironmentFailed", "the deadline of 0.3 s passed after 0 of 3 groups"),
        ("Garbage", (), "EnvironmentFailed", "scores[0]: nan is not a finite number"),
    ],
)
async def test_broken_environments_end_with_the_reason(tmp_path, inference, name, more, reason, message):
    entry = f"{ENVIRONMENTS / 'broken.py'}:{name}"
    async with process(tmp_path, inference, entry, "--set", "max_consecutive_failures=2", *more) as running:
        assert await running.wait() == 1
    assert running.termination_message["reason"] == reason
    assert message in running.termination_message["message"]
    assert running.output == b""


async def test_a_refused_key_ends_with_unauthorized(tmp_path, inference):
    async with command(tmp_path, "process", "--entry", "letters", "--base-url", inference.url) as running:
        assert await running.wait() == 1
    assert running.termination_message["reason"] == "Unauthorized"


async def test_mistakes_on_the_command_line_are_explained(tmp_path):
    for arguments, complaint in [
        (["process", "--base-url", "http://127.0.0.1:9"], "--entry is missing"),
        (["process", "--base-url", "http://127.0.0.1:9", "--entry", "letters", "--set", "seed"], "FIELD=VALUE"),
        (["describe", "--entry", "letters:Nope"], 'there is no module letters in this image"'),
    ]:
        async with command(tmp_path, *arguments) as running:
            code = await running.wait()
        assert complaint in running.log
        assert "Traceback" not in running.log
        assert code == 1


def test_nothing_heavy_is_imported_for_an_environment_of_our_own():
    """A pod starts in a second, and the image needs no torch."""
    program = (
        "import sys; import clotho_environment.cli\n"
        "import clotho_environment.commands.serve, clotho_environment.commands.process\n"
        "from clotho_environment.entries import find_entry; find_entry('letters')\n"
        "print(*{'torch', 'transformers', 'datasets', 'numpy', 'verifiers', 'reasoning_gym'} & set(sys.modules))"
    )
    paths = {"PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | paths, capture_output=True, check=True)
    assert done.stdout.split() == []


async def test_describe_is_one_json_document(tmp_path):
    async with command(tmp_path, "describe", "--entry", "letters") as running:
        assert await running.wait() == 0
    assert {"letters", "group_size"} <= {field["name"] for field in json.loads(running.output)["fields"]}


async def test_results_are_counted_by_score(tmp_path, inference):
    answers = iter("aaaaaaaa" * 100)
    inference.reply = lambda prompt: (prompt[0] if next(answers) == "a" and prompt[0] in "abcd" else "-") * 8
    more = ("--results", "--groups", "8", "--set", "group_size=2", "--set", "concurrency=1")
    async with process(tmp_path, inference, "letters", *more) as running:
        assert await running.wait() == 0, running.log
    trial = running.termination_message["trial"]
    samples, scores = trial.pop("samples"), trial.pop("scores")
    assert trial == {"stepsTested": 8, "completions": 16, "correct": 8, "stepsWithCorrect": 4}
    assert sorted(scores) == [[0.0, 0.0]] * 4 + [[1.0, 1.0]] * 4
    assert len(samples) == 2
    for sample in samples:
        letter = sample["prompt"].removesuffix(">")
        expected = (letter * 8, 1.0) if letter in "abcd" else ("-" * 8, 0.0)
        assert (sample["answer"], sample["score"]) == expected


@pytest.mark.parametrize("status", [400, 404])
async def test_a_request_that_cannot_succeed_ends_the_test_at_once(tmp_path, inference, status):
    """Not after max_consecutive_failures, which are for the environment's own mistakes."""
    inference.troubles += [web.json_response({"error": "no such model"}, status=status) for _ in range(20)]
    more = ("--groups", "1", "--set", "concurrency=1", "--set", "group_size=1")
    async with process(tmp_path, inference, "letters", *more) as running:
        assert await running.wait() == 1
    assert f"InferenceError: POST /v1/completions: {status}" in running.termination_message["message"]
    assert len(inference.troubles) == 19


async def test_a_model_that_hangs_keeps_what_it_did(tmp_path, inference):
    (tmp_path / "stops.py").write_text(STOPS_AFTER_ONE)
    more = ("--results", "--groups", "3", "--deadline", "4", "--set", "group_size=2", "--set", "concurrency=1")
    async with process(tmp_path, inference, str(tmp_path / "stops.py"), *more) as running:
        assert await running.wait() == 1
    words = running.termination_message
    assert words["message"] == "the deadline of 4 s passed after 1 of 3 groups"
    assert (words["trial"]["stepsTested"], words["trial"]["completions"]) == (1, 2)


STOPS_AFTER_ONE = """
import asyncio
from clotho_environment.builtin.letters import Letters

class Stops(Letters):
    tries = 0

    async def rollout(self, item, client):
        self.tries += 1
        if self.tries > 1:
            await asyncio.Event().wait()
        return await super().rollout(item, client)
"""


async def test_the_key_is_in_no_result(tmp_path, inference):
    """Neither in what an environment prints, raises or finds among its variables."""
    (tmp_path / "tells.py").write_text(TELLS)
    more = ("--results", "--groups", "1", "--set", "max_consecutive_failures=2")
    async with process(tmp_path, inference, str(tmp_path / "tells.py"), *more) as running:
        assert await running.wait() == 1
    words = json.dumps(running.termination_message)
    assert "the key is None" in words
    assert "Bearer ***" in words
    assert KEY not in words
    assert "Bearer ***" in running.log
    assert KEY not in running.log


TELLS = """
import logging, os
from clotho_environment.builtin.letters import Letters

class Tells(Letters):
    async def rollout(self, item, client):
        logging.getLogger("tells").warning("the key is %s", os.environ.get("OPENAI_API_KEY"))
        raise RuntimeError(f"headers: {client._session.headers}")
"""
