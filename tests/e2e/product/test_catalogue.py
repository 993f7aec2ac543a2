"""From a file to a trained policy: discover, describe, a locked field, a test with three models, a run, its results."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import yaml

from clotho_dev.cluster.kubectl import KubectlError
from e2e.product.command_line import Clotho
from e2e.product.runs import LIMIT_SECONDS, Object, Runs, condition, letters
from rig.pods import Pods

KEY = "sk-e2e-a-key-that-must-not-appear"
MINE = '''
import os
import socket

from clotho_environment import Config, Environment, Group
from pydantic import Field


def reach() -> str:
    """At import: whether there is a way out, and something to find."""
    for host, port in (("10.96.0.1", 443), ("198.51.100.1", 443), ("169.254.169.254", 80)):
        try:
            socket.create_connection((host, port), timeout=2).close()
            return f"reached {host}"
        except OSError:
            pass
    has_token = os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token")
    return "a token" if has_token or "SECRET_WORD" in os.environ else "nothing"


class MineConfig(Config):
    group_size: int = Field(8, ge=1, description="Attempts at each letter.")
    max_tokens: int = Field(8, ge=1, description="Letters to write.")
    letters: str = Field("abcd", min_length=1, description="Each letter is a task.")
    found: str = Field(reach(), description="What an import can reach.")


class Mine(Environment[MineConfig, str]):
    """Letters, discovered in a file."""

    name = "mine"

    def items(self):
        return list(self.config.letters)

    async def rollout(self, item, policy):
        completions = await policy.complete(f"{item}>")
        return Group(completions, [completion.text.count(item) / 8 for completion in completions])
'''
SERVER = """
import asyncio, os
from aiohttp import web

async def complete(request):
    if request.headers.get("Authorization") != "Bearer " + os.environ["KEY"]:
        return web.json_response({"error": "wrong key"}, status=401)
    body = await request.json()
    if body["model"] == "hangs":
        await asyncio.sleep(3600)
    letter = body["prompt"][0] if body["model"] == "good" else "?"
    choices = [{"text": letter * 8, "finish_reason": "stop"}] * body.get("n", 1)
    return web.json_response({"choices": choices})

app = web.Application()
app.router.add_post("/v1/completions", complete)
web.run_app(app, port=8001)
"""


def test_check_of_the_cluster_tries_images_and_network_policies(clotho: Clotho) -> None:
    found = {each["what"]: each for each in json.loads(clotho("check", "--cluster", "--output", "json"))}
    tried = [each for what, each in found.items() if what.startswith(("image ", "NetworkPolicies", "CRD ", "clocks"))]
    assert {each["state"] for each in tried} == {"ok"}, tried
    assert sum(what.startswith("image ") for what in found) == 3


def serve_models(runs: Runs, image: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"OPENAI_API_KEY": KEY}}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "models"},
        "spec": {"selector": {"app": "models"}, "ports": [{"port": 8001, "targetPort": 8001}]},
    }
    runs.kubectl.apply([secret, service])
    Pods(runs.kubectl, image).start(
        "models", f"import os; os.environ['KEY'] = {KEY!r}\n{SERVER}", labels={"app": "models"}
    )


def test_an_environment_file_is_discovered_tested_and_trained(
    runs: Runs, clotho: Clotho, python_image: str, tmp_path: Path
) -> None:
    folder = tmp_path / "environments"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "broken.py").write_text("def (")
    clotho("env", "discover", str(folder), "--config-map", "--write", str(tmp_path / "found.yaml"), is_in_cluster=False)
    runs.kubectl.apply(list(yaml.safe_load_all((tmp_path / "found.yaml").read_text())))
    leaves = {"exits.py": "import os; os._exit(0)"}
    runs.kubectl.apply(
        [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hostile"}, "data": leaves},
            environment("hostile", configMapName="hostile", entry="/environment/exits.py"),
        ]
    )
    described = runs.wait_for("environment/mine", "described", lambda e: condition(e, "Ready") == "True")
    fields = {field["name"]: field for field in described["status"]["fields"]}
    assert fields["found"]["default"] == "nothing", "an import has no way out and nothing to find"
    assert fields["letters"]["default"] == "abcd"
    hostile = runs.wait_for("environment/hostile", "given up", lambda e: condition(e, "Stalled") == "True")
    assert "during its import" in hostile["status"]["message"]

    refuse_a_locked_field(runs)
    try_three_models(runs, clotho, python_image)

    runs.kubectl.apply(story(config={"letters": "ab"}))
    clotho("run", "watch", "story")
    results = json.loads(clotho("run", "results", "story", "--output", "json"))
    assert results["phase"] == "Completed"
    assert results["results"]["step"] == 10
    run = runs.get("story")
    assert run["status"]["resolved"][0]["config"] == {"letters": "ab", "group_size": 8}


def environment(name: str, **spec: Any) -> Object:
    return {"apiVersion": "clotho.dev/v1alpha1", "kind": "Environment", "metadata": {"name": name}, "spec": spec}


def story(**environment: Any) -> Object:
    named = {"name": "mine", "environmentName": "mine", **environment}
    run = letters("story", steps=10, environments=[named])
    run["spec"]["training"]["learningRate"] = 0.01
    return run


def refuse_a_locked_field(runs: Runs) -> None:
    """By the API server itself: it never gets as far as the operator."""
    policy = {
        "apiVersion": "clotho.dev/v1alpha1",
        "kind": "TrainingPolicy",
        "metadata": {"name": "house"},
        "spec": {"locked": {"training": {"learningRate": 0.01}, "environmentConfig": {"letters": "ab"}}},
    }
    runs.kubectl.apply(policy)
    wrong = story(config={"letters": "ab"})
    wrong["spec"]["training"]["learningRate"] = 0.02
    words = refusal_of(runs, wrong)
    assert "training.learningRate" in words
    assert "0.01" in words


def refusal_of(runs: Runs, run: Object) -> str:
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:  # a policy takes a moment to be in force
        try:
            runs.kubectl.apply(run)
        except KubectlError as refusal:
            return str(refusal)
        runs.kubectl.run("delete", "trainingrun", run["metadata"]["name"])
        assert time.monotonic() < deadline, "the API server takes what the policy forbids"
        time.sleep(1)


def try_three_models(runs: Runs, clotho: Clotho, image: str) -> None:
    serve_models(runs, image)
    named = [part for model in ("good", "garbage", "hangs") for part in ("--model", model)]
    where = ["--base-url", "http://models:8001/v1", "--secret", "key"]
    size = ["--steps", "2", "--group-size", "4", "--timeout", "80"]
    shown = clotho("test", "mine", *named, *where, *size, "--keep")
    assert len(re.findall(r"good, score 1\.00:\n  prompt  ([abcd])>\n  answer  \1{8}\n", shown)) == 2, shown
    assert shown.count("garbage, score 0.00:\n") == 2, shown
    assert shown.splitlines()[-1].startswith("The environment works: "), shown
    (test,) = runs.kubectl.get("inferencetests")["items"]
    status = test["status"]
    assert status["phase"] == "Completed"
    assert status["summary"] == {
        "requested": 3,
        "tested": 2,
        "succeeded": 2,
        "bestModel": "good",
        "averageAccuracy": 0.5,
        "environmentWorks": True,
    }
    good, garbage, hangs = status["models"]
    assert (good["completions"], good["correct"], good["accuracy"], good["stepSuccessRate"]) == (8, 8, 1, 1)
    assert (garbage["phase"], garbage["correct"], garbage["accuracy"]) == ("Completed", 0, 0)
    assert hangs["phase"] == "Failed"
    assert "the deadline of 60 s passed" in hangs["error"].lower()
    assert_the_key_is_nowhere(runs, test)


def assert_the_key_is_nowhere(runs: Runs, test: Object) -> None:
    selector = f"--selector=clotho.dev/inference-test={test['metadata']['name']}"
    pods = runs.kubectl.get("pods", selector)["items"]
    assert len(pods) == 3
    logs = [runs.kubectl.run("logs", pod["metadata"]["name"]) for pod in pods]
    seen = json.dumps([test, pods, logs, runs.kubectl.get("events,networkpolicies,environments")])
    assert KEY not in seen
    assert "secretKeyRef" in seen
