"""`clotho mcp`: the tools for agents. On stdio, standard output carries only the protocol."""

import argparse
import logging
import os
import sys
from typing import Any, Final

from clotho.cli.failure import Exit, Failure
from clotho.cli.files.run_files import read_run
from clotho.workspace.objects import Workspace

TOKEN_VARIABLE: Final = "CLOTHO_MCP_TOKEN"  # noqa: S105 - the name of the variable


async def serve(options: argparse.Namespace, workspace: Workspace) -> int:
    try:
        from clotho.agent.server import build_server  # first, so that a missing package is reported as mcp

        from clotho.agent.http import PATH, is_loopback, serve_http  # isort: skip
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed; in a clone of Clotho: pip install '.[agent]'"
        raise Failure(message, Exit.USAGE) from error
    from clotho.agent.tools import Settings, Toolbox

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    base: dict[str, Any] = read_run(options.base).get("spec", {}) if options.base else {}
    settings = Settings(
        status_interval_seconds=options.status_interval,
        base=base,
        test_secret=options.test_secret,
        test_base_url=options.test_base_url,
    )
    server = build_server(Toolbox(workspace, settings))
    if not options.http:
        try:
            await server.run_stdio_async()
        except* BrokenPipeError:  # the agent is gone
            logging.debug("the agent has closed its end")
        return Exit.OK
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token and not is_loopback(options.host):
        raise Failure(
            f"--host {options.host} is not loopback: anyone who reaches it could start runs with your permissions; "
            f"set ${TOKEN_VARIABLE}, which agents then send as their bearer token",
            Exit.USAGE,
        )
    print(f"serving http://{options.host}:{options.port}{PATH}", file=sys.stderr, flush=True)
    await serve_http(server, options.host, options.port, token)
    return Exit.OK
