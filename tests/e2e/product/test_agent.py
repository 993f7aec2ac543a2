"""An agent takes an environment from a file to trained weights with the ten tools; keys never appear anywhere."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from clotho_dev import REPOSITORY
from clotho_dev.cluster.kubectl import Kubectl, KubectlError
from clotho_dev.cluster.target import Embedded
from e2e.product.runs import LIMIT_SECONDS, POLL_SECONDS, Runs, letters
from rig.pods import python_pod

KEYS = {"OPENAI_API_KEY": "sk-e2e-6f1d0c7a", "WANDB_API_KEY": "e2e0" * 10}
SOURCES = os.pathsep.join(str(REPOSITORY / folder) for folder in ("operator", "images/contract"))
MODELS = """
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Models(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != "Bearer " + os.environ["OPENAI_API_KEY"]:
            return self.answer(401, {"error": "who are you?"})
        text = asked["prompt"][0] * 8 if asked["model"] == "good" else "?"
        choices = [{"index": i, "text": text, "finish_reason": "stop"} for i in range(asked["n"])]
        self.answer(200, {"id": "x", "model": asked["model"], "choices": choices})

    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

ThreadingHTTPServer(("", 8080), Models).serve_forever()
"""


@dataclass
class Agent:
    client: Client
    heard: list[str] = field(default_factory=list)

    async def __call__(self, tool: str, **given: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, given, read_timeout_seconds=600)
        assert not result.is_error, result
        self.heard.append(result.model_dump_json())
        answer: dict[str, Any] = result.structured_content or {}
        return answer


@dataclass(frozen=True)
class Program:
    kubeconfig: Path
    namespace: str

    def argv(self, *words: str) -> list[str]:
        where = [] if "discover" in words else ["--namespace", self.namespace, "--kubeconfig", str(self.kubeconfig)]
        return [sys.executable, "-m", "clotho.cli", *words, *where]

    def __call__(self, *words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": SOURCES}
        done = subprocess.run(
            self.argv(*words), env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def clotho(runs: Runs, embedded: Embedded) -> Program:
    return Program(embedded.folder.kubeconfig, str(runs.kubectl.namespace))


@pytest.fixture
def models(runs: Runs, python_image: str) -> Iterator[str]:
    """An OpenAI-compatible server in the namespace that requires the key; its pod has it from the Secret."""
    for name, key in (("keys", "OPENAI_API_KEY"), ("wandb", "WANDB_API_KEY")):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: KEYS[key]}}
        runs.kubectl.apply(secret)
    pod = python_pod("models", python_image, MODELS, labels={"app": "models"})
    pod["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": "keys"}}]
    service = {"selector": {"app": "models"}, "ports": [{"port": 8080}]}
    runs.kubectl.apply([pod, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "models"}, "spec": service}])
    runs.kubectl.run("wait", "pod/models", "--for=condition=Ready", "--timeout=60s", timeout=70)
    yield "http://models:8080/v1"
    runs.kubectl.run("delete", "pod", "models", "--wait=false")


@pytest.fixture
def base(tmp_path: Path) -> str:
    run = letters("base", steps=12, tracking={"wandb": {"mode": "offline", "secretName": "wandb"}})
    run["spec"]["training"]["checkpoint"] = {"everySteps": 6}
    (tmp_path / "base.yaml").write_text(json.dumps(run))
    return str(tmp_path / "base.yaml")


async def test_agent_trains_an_environment_file_and_finds_its_weights(
    runs: Runs, clotho: Program, models: str, base: str, tmp_path: Path
) -> None:
    source, original = tmp_path / "letters.py", REPOSITORY / "images/environment/clotho_environment/builtin/letters.py"
    source.write_text(original.read_text().replace('"score_mean"', '"percent_correct"'))
    manifests = tmp_path / "environments.yaml"
    clotho("env", "discover", str(source), "--config-map", "--write", str(manifests))
    runs.kubectl.apply(manifests.read_text())
    runs.kubectl.run("wait", "environment/letters", "--for=condition=Ready", "--timeout=120s", timeout=130)

    program, *words = clotho.argv("mcp", "--base", base, "--test-secret", "keys", "--test-base-url", models)
    log = (tmp_path / "server.log").open("w+")
    server = stdio_client(
        StdioServerParameters(command=program, args=words, env={**os.environ, "PYTHONPATH": SOURCES}), errlog=log
    )
    async with Client(server) as client:
        agent = Agent(client)
        assert (await agent("rl_list_environments"))["environments"][0]["class_name"] == "Letters"
        await agent("rl_select_environment", name="letters")
        config = await agent("rl_get_current_config")
        assert "group_size" in [each["name"] for each in config["configurable_fields"]]
        assert (await agent("rl_edit_config", field="group_size", value=8))["problems"] == []
        tested = await agent("rl_test_inference", num_steps=2, group_size=4, models=["good", "bad"])
        assert tested["summary"]["environment_works"], tested
        assert tested["summary"]["best_model"] == "good"

        run = (await agent("rl_start_training"))["run_id"]
        runs.wait_for_phase(run, "Running", "Completed")
        status = await agent("rl_check_status", run_id=run)
        assert status["status"] in ("running", "completed")
        assert (await agent("rl_check_status", run_id=run))["rate_limited"]
        assert "trainer" in str((await agent("rl_get_logs", run_id=run, lines=5))["logs"])
        clotho("run", "watch", run)
        results = await agent("rl_get_results", run_id=run)
        assert results["status"] == "completed"
        assert results["final_metrics"]["step"] == 12
        assert (await agent("rl_list_runs"))["count"] == 1

        await agent("rl_edit_config", field="training.steps", value=5000)
        await agent("rl_edit_config", field="evaluate_every_steps", value=1)
        second = (await agent("rl_start_training"))["run_id"]
        runs.wait_for_step(second, 3)
        wait_for_evaluation(runs, second)
        assert (await agent("rl_check_status", run_id=second))["metrics"]["eval_percent_correct"] is not None
        leaks = places_that_show(runs.kubectl, KEYS.values())
        assert (await agent("rl_stop_training", run_id=second))["status"] == "stopping"
        runs.wait_for_phase(second, "Stopped")

    clotho("run", "download", run, "--to", str(tmp_path / "weights"))
    assert (tmp_path / "weights" / "adapter_model.safetensors").stat().st_size > 0
    assert "trainer" in clotho("run", "logs", run, "--component", "trainer", "--tail", "3")
    log.seek(0)
    leaks += [f"answer {number}" for number, text in enumerate(agent.heard) if shows(text, KEYS.values())]
    leaks += ["the server's log"] * shows(log.read(), KEYS.values())
    assert leaks == []


def wait_for_evaluation(runs: Runs, run: str) -> None:
    pod = runs.pods(run, "environment")[0]["metadata"]
    path = f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}:8003/proxy/metrics"
    deadline = time.monotonic() + LIMIT_SECONDS
    while 'measure="percent_correct"' not in runs.kubectl.run("get", "--raw", path):
        assert time.monotonic() < deadline, f"{run} was never evaluated"
        time.sleep(POLL_SECONDS)


def places_that_show(kubectl: Kubectl, keys: Any) -> list[str]:
    """Manifests, statuses, events, logs and command lines: a key might turn up anywhere."""
    kinds = "trainingruns,environments,inferencetests,trainingpolicies,pods,services,configmaps,networkpolicies,events"
    items = kubectl.get(f"{kinds},persistentvolumeclaims")["items"]
    items += kubectl.get("secrets", "--selector=app.kubernetes.io/part-of=clotho")["items"]
    found = [f"{item['kind']} {item['metadata']['name']}" for item in items if shows(json.dumps(item), keys)]
    for where in (kubectl, kubectl.in_namespace("clotho-system")):
        for pod in where.get("pods")["items"]:
            name = pod["metadata"]["name"]
            with contextlib.suppress(KubectlError):  # it is gone by now, or has not begun
                if shows(where.run("logs", name, "--all-containers", "--tail=-1"), keys):
                    found.append(f"logs of {name}")
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        if shows(line, keys):
            found.append(f"command line of {process.parent.name}: {line.split(chr(0))[0]}")
    return found


def shows(text: str, keys: Any) -> bool:
    return any(key in text or base64.b64encode(key.encode()).decode() in text for key in keys)
