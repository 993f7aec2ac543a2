"""An agent with the SDK's own client drives runs through the ten tools, on a real API server."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from clotho_dev.cluster.control_plane import ControlPlane
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.process import die_with_parent
from rig.cluster_access import Body, ClusterAccess, component, condition, eventually
from rig.commands import Clotho
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

KEY = "sk-this-must-stay-secret"
FIELDS = [
    {"name": "group_size", "type": "integer", "default": 4, "minimum": 1},
    {"name": "letters", "type": "string", "default": "abc"},
]
BASE = {
    "apiVersion": "clotho.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "base"},
    "spec": {
        "model": {"name": "Qwen/Qwen3-0.6B"},
        "training": {"steps": 100, "batchSize": 8},
        "storage": {"ephemeral": True},
        "trainer": {"gpus": 0},
    },
}
FINISHED = {"state": "finished", "step": 100, "totalSteps": 100, "rewardMean": 0.9}


@pytest_asyncio.fixture
async def catalogue(cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess, kubectl: Kubectl) -> None:
    """A namespace with one described environment, one locked field and a key."""
    kubelet.description = {"name": "letters", "className": "Letters", "description": "Write letters.", "fields": FIELDS}
    head = {"apiVersion": "clotho.dev/v1alpha1"}
    lab = kubectl.in_namespace(cluster.namespace)
    locked = {"locked": {"training": {"learningRate": 0.0001}}}
    lab.apply({**head, "kind": "TrainingPolicy", "metadata": {"name": "lab"}, "spec": locked})
    lab.apply({**head, "kind": "Environment", "metadata": {"name": "letters"}, "spec": {}})
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"OPENAI_API_KEY": KEY}}
    lab.apply(secret)

    async def look() -> tuple[bool, Body]:
        body = await cluster.get("environments", "letters")
        return condition(body, "Ready").get("status") == "True", body

    await eventually("described", look)


@pytest.fixture
def clotho(control_plane: ControlPlane, cluster: ClusterAccess) -> Clotho:
    return Clotho(control_plane.kubeconfig, cluster.namespace)


@pytest.fixture
def base(tmp_path: Path) -> str:
    path = tmp_path / "base.yaml"
    path.write_text(json.dumps(BASE))
    return str(path)


@asynccontextmanager
async def agent_on_stdio(clotho: Clotho, *words: str) -> AsyncIterator["Agent"]:
    program, *arguments = clotho.argv("mcp", *words)
    parameters = StdioServerParameters(command=program, args=arguments, env=clotho.environment())
    async with Client(stdio_client(parameters), read_timeout_seconds=60) as client:
        yield Agent(client)


class Agent:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.heard: list[str] = []

    async def __call__(self, tool: str, **given: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, given)
        assert not result.is_error, result
        self.heard.append(result.model_dump_json())
        answer: dict[str, Any] = result.structured_content or {}
        return answer


async def play_the_models(cluster: ClusterAccess, kubelet: FakeKubelet) -> None:
    """Two pods try two models: one gets half of its answers right, the other none."""

    async def look() -> tuple[bool, list[Body]]:
        found = [pod for pod in await cluster.all("pods") if component(pod) == "inference-test"]
        return len(found) == 2 and all(pod["status"].get("phase") == "Running" for pod in found), found

    for pod in await eventually("two models tried", look):
        command = pod["spec"]["containers"][0]["command"]
        is_good = any(word.endswith("good") for word in command)
        trial = {"stepsTested": 2, "completions": 8, "correct": 4, "stepsWithCorrect": 2} if is_good else {}
        words = {"reason": "Finished" if is_good else "EnvironmentFailed", "message": "no answer", "trial": trial}
        await kubelet.fail(pod, exit_code=0 if is_good else 1, message=json.dumps(words))


async def test_an_agent_that_is_killed_leaves_no_traceback(clotho: Clotho) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    process = await asyncio.create_subprocess_exec(
        *clotho.argv("mcp"),
        env=clotho.environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=theirs,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(theirs)
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    _, err = await process.communicate(json.dumps(hello).encode() + b"\n")
    assert (process.returncode, err.decode()) == (0, "")


async def test_agent_completes_a_run_with_the_ten_tools(
    clotho: Clotho, cluster: ClusterAccess, kubelet: FakeKubelet, catalogue: None, operator: OperatorProcess, base: str
) -> None:
    words = ["--base", base, "--test-secret", "keys", "--test-base-url", "http://models.example:8080/v1"]
    async with agent_on_stdio(clotho, *words) as agent:
        listed = await agent("rl_list_environments")
        assert [(each["name"], each["class_name"]) for each in listed["environments"]] == [("letters", "Letters")]
        assert (await agent("rl_select_environment", name="leters"))["available"] == ["letters"]
        await agent("rl_select_environment", name="letters")
        config = await agent("rl_get_current_config")
        assert {"group_size", "training.steps"} <= {each["name"] for each in config["configurable_fields"]}
        assert [each["name"] for each in config["locked_fields"]] == ["training.learningRate"]

        refused = await agent("rl_edit_config", field="training.learningRate", value=1)
        assert refused["locked_value"] == 0.0001
        assert "is below 1" in (await agent("rl_edit_config", field="group_size", value=0))["error"]
        await agent("rl_edit_config", field="letters", value="xyz")

        models = asyncio.create_task(play_the_models(cluster, kubelet))
        tested = await agent("rl_test_inference", num_steps=2, group_size=4, models=["good", "bad"])
        await models
        assert tested["summary"] == {
            "models_requested": 2,
            "models_tested": 1,
            "models_succeeded": 1,
            "best_model": "good",
            "average_accuracy": 0.5,
            "avg_accuracy": 0.5,
            "environment_works": True,
            "environment_working": True,
        }
        assert tested["models_tested"][1]["error"]

        started = await agent("rl_start_training")
        run = started["run_id"]
        await cluster.until_phase("Running", run)
        assert (await cluster.run(run))["spec"]["environments"][0]["config"] == {"group_size": 4, "letters": "xyz"}
        status = await agent("rl_check_status", run_id=run)
        assert status["status"] == "running"
        assert status["processes"]["trainer"]["state"] == "ready"
        assert (await agent("rl_check_status", run_id=run))["rate_limited"] is True
        heard = agent.heard

    async with agent_on_stdio(clotho, *words) as agent:
        again = await agent("rl_check_status", run_id=run)
        assert again["rate_limited"] is True, "the cluster remembers what the process forgot"
        assert "rl_select_environment" in (await agent("rl_start_training"))["error"]
        kubelet.progress = FINISHED
        await cluster.until_phase("Completed", run)
        results = await agent("rl_get_results", run_id=run)
        assert results["final_metrics"]["reward_mean"] == 0.9
        assert "is Completed" in (await agent("rl_stop_training", run_id=run))["error"]

        kubelet.progress = {"state": "training", "step": 1, "totalSteps": 100, "registered": True, "serving": True}
        await agent("rl_select_environment", name="letters")
        second = (await agent("rl_start_training"))["run_id"]
        await cluster.until_phase("Running", second)
        assert (await agent("rl_stop_training", run_id=second))["status"] == "stopping"
        await cluster.until_phase("Stopped", second)
        states = {each["run_id"]: each["status"] for each in (await agent("rl_list_runs"))["runs"]}
        assert states == {run: "completed", second: "stopped"}
        heard += agent.heard
    plurals = ("trainingruns", "environments", "inferencetests", "pods", "events", "configmaps", "networkpolicies")
    objects = [await cluster.all(plural) for plural in plurals]
    for place in (json.dumps(objects), "".join(heard), operator.log()):
        assert KEY not in place


@asynccontextmanager
async def serving_http(clotho: Clotho, *words: str, token: str = "") -> AsyncIterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *clotho.argv("mcp", "--http", "--port", str(port), *words),
        env={**clotho.environment(), "CLOTHO_MCP_TOKEN": token},
        preexec_fn=die_with_parent,
    )
    try:
        async with asyncio.timeout(60):
            while not await is_open(port):
                assert process.returncode is None
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        await process.wait()


async def is_open(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_http_server_serves_several_agents_at_once(clotho: Clotho, catalogue: None, base: str) -> None:
    async with serving_http(clotho, "--base", base) as url:
        async with Client(url, mode="legacy") as one, Client(url, mode="legacy") as other:
            first, second = Agent(one), Agent(other)
            await first("rl_select_environment", name="letters")
            assert "error" in await second("rl_get_current_config"), "the selection is the other agent's"
            await second("rl_select_environment", name="letters")
            await first("rl_edit_config", field="letters", value="xyz")
            assert current(await first("rl_get_current_config"), "letters") == "xyz"
            assert current(await second("rl_get_current_config"), "letters") == "abc"
        async with Client(url, mode="auto") as newest:
            agent = Agent(newest)
            session = (await agent("rl_select_environment", name="letters"))["session"]
            assert "pass the `session`" in (await agent("rl_get_current_config"))["error"]
            await agent("rl_edit_config", field="letters", value="uvw", session=session)
            assert current(await agent("rl_get_current_config", session=session), "letters") == "uvw"


def current(config: dict[str, Any], name: str) -> Any:
    return next(each["current_value"] for each in config["configurable_fields"] if each["name"] == name)


async def test_http_with_a_token_refuses_those_without(clotho: Clotho, crds: None) -> None:
    async with serving_http(clotho, token="open sesame") as url, aiohttp.ClientSession() as session:
        for header, status in ((None, 401), ("Bearer wrong", 401), ("Bearer open sesame", 400)):
            headers = {"Authorization": header} if header else {}
            async with session.post(url, json={}, headers=headers) as answer:
                assert answer.status == status


async def test_http_beyond_loopback_needs_a_token(clotho: Clotho) -> None:
    refused = await clotho("mcp", "--http", "--host", "0.0.0.0")
    assert refused.code == 2
    assert "$CLOTHO_MCP_TOKEN" in refused.err
