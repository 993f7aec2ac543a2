"""`clotho ui`: the page on 127.0.0.1, with the rights of the kubeconfig."""

import argparse
import asyncio
import os
import sys
import webbrowser
from typing import Final

from clotho.cli.failure import Exit, Failure
from clotho.cli.terminal.output import note
from clotho.web.access import LocalAccess
from clotho.web.feed import Feed
from clotho.web.protection import local_hosts
from clotho.web.server import Server, serving
from clotho.workspace.objects import Workspace

HOST: Final = "127.0.0.1"


async def serve(options: argparse.Namespace, workspace: Workspace) -> int:
    chosen = [options.namespace] if options.namespace else []
    access = LocalAccess(Feed(workspace.client, chosen, fallback=workspace.namespace))
    server = Server(access, hosts=local_hosts(options.port), title=options.context)
    address = f"http://{HOST}:{options.port}/"
    try:
        async with serving(server, HOST, options.port):
            print(f"Open {address}#key={access.key}", flush=True)
            note("It shows what your kubeconfig may read, until you press Ctrl-C.")
            if not options.no_open and _has_screen():
                await asyncio.to_thread(webbrowser.open, f"{address}#code={access.new_code()}")
            await asyncio.Event().wait()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise Failure(f"cannot listen on {HOST}:{options.port}: {reason}; choose another --port") from error
    return Exit.OK


def _has_screen() -> bool:
    """Without one, a browser in the terminal would be started."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
