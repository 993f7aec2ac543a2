"""The tools over MCP: standard input and output for one agent, streamable HTTP for several."""

import uuid
from typing import Annotated, Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from pydantic import Field

from clotho.agent.answers import Answer
from clotho.agent.tools import Toolbox
from clotho.api.names import LOGGED_COMPONENTS, TRAINER

INSTRUCTIONS: Final = (
    "Reinforcement-learning fine-tuning on a Kubernetes cluster. The usual way: rl_list_environments, "
    "rl_select_environment, rl_get_current_config, rl_edit_config as often as needed, rl_test_inference "
    "where there is one, rl_start_training, rl_check_status and rl_get_logs from time to time, rl_get_results. "
    "Runs take hours and continue without you."
)
SESSION_HEADER: Final = "mcp-session-id"
READS: Final = ToolAnnotations(read_only_hint=True)

AgentContext = Context[Any, Any]
Component = Annotated[  # a string to pydantic: the toolbox answers a misspelt one in a sentence
    str, Field(description="Whose logs.", json_schema_extra={"enum": list(LOGGED_COMPONENTS)})
]
RunId = Annotated[str, Field(description="As returned by rl_start_training or rl_list_runs.")]
Session = Annotated[
    str, Field(description="As returned by rl_select_environment; required only where the connection has no session.")
]


def session_of(context: AgentContext, session: str) -> str:
    """The one passed by the agent, else its connection's: one on stdio, MCP's own over HTTP, none in stateless HTTP."""
    if session:
        return session
    return "stdio" if context.headers is None else context.headers.get(SESSION_HEADER, "")


def build_server(toolbox: Toolbox) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("clotho", instructions=INSTRUCTIONS, log_level="WARNING")
    _add_preparing_tools(server, toolbox)
    if toolbox.can_test:  # a tool that lacks its key would only fail
        _add_test_tool(server, toolbox)
    _add_run_tools(server, toolbox)
    return server


def _add_preparing_tools(server: MCPServer[Any], toolbox: Toolbox) -> None:
    @server.tool(annotations=READS)
    async def rl_list_environments() -> Answer:
        """List the environments that can be trained on."""
        return await toolbox.list_environments()

    @server.tool()
    async def rl_select_environment(
        name: Annotated[str, Field(description="As returned by rl_list_environments.")],
        context: AgentContext,
        session: Session = "",
    ) -> Answer:
        """Select an environment; its settings start from their defaults."""
        return await toolbox.select_environment(session_of(context, session) or uuid.uuid4().hex, name)

    @server.tool(annotations=READS)
    async def rl_get_current_config(context: AgentContext, session: Session = "") -> Answer:
        """Show every setting of the selected environment and of the run: those you can change and those locked."""
        return await toolbox.current_config(session_of(context, session))

    @server.tool()
    async def rl_edit_config(
        field: Annotated[str, Field(description="A name from rl_get_current_config, such as training.steps.")],
        value: Annotated[Any, Field(description="Checked at once: type, range, and whether it is locked.")],
        context: AgentContext,
        session: Session = "",
    ) -> Answer:
        """Change one setting of the run that is being prepared."""
        return await toolbox.edit_config(session_of(context, session), field, value)


def _add_test_tool(server: MCPServer[Any], toolbox: Toolbox) -> None:
    @server.tool()
    async def rl_test_inference(
        context: AgentContext,
        num_steps: Annotated[int, Field(description="Groups for each model.", ge=1, le=1000)] = 3,
        group_size: Annotated[int, Field(description="Completions a group.", ge=1, le=1024)] = 16,
        models: Annotated[
            list[str] | None, Field(description="Names of models; by default a small, a medium and a large one.")
        ] = None,
        session: Session = "",
    ) -> Answer:
        """Try the selected environment against models that are served elsewhere. Takes minutes."""
        count = 0

        async def report(message: str) -> None:
            nonlocal count
            count += 1
            await context.report_progress(count, message=message)

        return await toolbox.test_inference(session_of(context, session), num_steps, group_size, models, report)


def _add_run_tools(server: MCPServer[Any], toolbox: Toolbox) -> None:
    @server.tool()
    async def rl_start_training(context: AgentContext, session: Session = "") -> Answer:
        """Start a training run with the selected environment and its settings. Uses GPUs for hours."""
        return await toolbox.start_training(session_of(context, session))

    @server.tool()
    async def rl_check_status(run_id: RunId) -> Answer:
        """Show the state, progress and metrics of a run. Rate-limited for each run once it has trained for a while."""
        return await toolbox.check_status(run_id)

    @server.tool(annotations=READS)
    async def rl_get_logs(
        run_id: RunId,
        component: Component = TRAINER,
        lines: Annotated[int, Field(description="The last lines of each pod.", ge=1, le=1000)] = 100,
    ) -> Answer:
        """Read the last log lines of a run's pods, with tracebacks. Never rate-limited."""
        return await toolbox.logs(run_id, component, lines)

    @server.tool(annotations=ToolAnnotations(destructive_hint=True))
    async def rl_stop_training(run_id: RunId) -> Answer:
        """Stop a run for good, after a final checkpoint."""
        return await toolbox.stop_training(run_id)

    @server.tool(annotations=READS)
    async def rl_get_results(run_id: RunId) -> Answer:
        """Show a run's final metrics, its history, and where the weights are."""
        return await toolbox.results(run_id)

    @server.tool(annotations=READS)
    async def rl_list_runs() -> Answer:
        """List all runs with their states."""
        return await toolbox.list_runs()
