"""The tools as an MCP client sees them: names, schemas, answers; wrong arguments are results too."""

from typing import Any

import pytest
from mcp.client import Client

from clotho.agent.server import build_server
from clotho.agent.tools import Settings, Toolbox
from rig.fake_api import FakeApi, described

TOOLS = {
    "rl_list_environments": set(),
    "rl_select_environment": {"name"},
    "rl_get_current_config": set(),
    "rl_edit_config": {"field", "value"},
    "rl_start_training": set(),
    "rl_check_status": {"run_id"},
    "rl_get_logs": {"run_id"},
    "rl_stop_training": {"run_id"},
    "rl_get_results": {"run_id"},
    "rl_list_runs": set(),
    "rl_test_inference": set(),
}
MODES = ["legacy", "auto"]


@pytest.fixture
def api() -> FakeApi:
    fake = FakeApi()
    fake.add("Environment", "echo", {"entry": "echo.py"}, described())
    return fake


@pytest.fixture(params=MODES)
def client(api: FakeApi, request: pytest.FixtureRequest) -> Client:
    base = {"model": {"name": "m"}, "training": {"steps": 10}}
    settings = Settings(base=base, test_secret="keys")
    return Client(build_server(Toolbox(api.workspace, settings)), mode=request.param)


async def call(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, given)
    assert not result.is_error, result
    answer: dict[str, Any] = result.structured_content or {}
    return answer


async def test_every_tool_has_a_schema(client: Client) -> None:
    async with client:
        listed = (await client.list_tools()).tools
    assert {tool.name: set(tool.input_schema.get("required", ())) for tool in listed} == TOOLS
    assert all(tool.description for tool in listed)


async def test_a_tool_without_its_key_is_not_offered(api: FakeApi) -> None:
    async with Client(build_server(Toolbox(api.workspace, Settings()))) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        tips = (await call(client, "rl_list_environments"))["tips"]
    assert listed == TOOLS.keys() - {"rl_test_inference"}
    assert not any("rl_test_inference" in tip for tip in tips)


async def test_a_session_from_selection_to_a_run(client: Client, api: FakeApi) -> None:
    async with client:
        assert (await call(client, "rl_list_environments"))["count"] == 1
        assert (await call(client, "rl_select_environment", name="echo"))["environment"] == "echo"
        assert (await call(client, "rl_edit_config", field="mode", value="hard"))["value"] == "hard"
        run = (await call(client, "rl_start_training"))["run_id"]
        assert (await call(client, "rl_list_runs"))["runs"][0]["run_id"] == run
    spec = (await api.workspace.get("TrainingRun", run))["spec"]
    assert spec["environments"][0]["config"]["mode"] == "hard"


async def test_a_misspelt_component_is_answered_in_a_sentence(client: Client, api: FakeApi) -> None:
    components = ["trainer", "api-server", "inference", "environment"]
    async with client:
        listed = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        answer = await call(client, "rl_get_logs", run_id="echo-1", component="trainr")
    assert answer == {"error": "no component 'trainr'; did you mean trainer?", "available": components}
    assert listed["rl_get_logs"]["properties"]["component"]["enum"] == components


async def test_errors_are_results(client: Client) -> None:
    async with client:
        assert "rl_select_environment" in (await call(client, "rl_start_training"))["error"]
        assert "not found" in (await call(client, "rl_get_results", run_id="absent"))["error"]
        wrong = await client.call_tool("rl_test_inference", {"num_steps": 0})
        assert wrong.is_error
        absent = await client.call_tool("rl_check_status", {})
        assert absent.is_error
