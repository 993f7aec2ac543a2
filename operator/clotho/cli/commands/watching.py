"""`run watch`: redraws on a terminal; in a log, a line whenever something is new."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any, Final

from clotho.cli.failure import Exit, Failure
from clotho.cli.session.hints import hint
from clotho.cli.session.lookup import find_run_patiently
from clotho.cli.terminal import output, view
from clotho.cli.terminal.screen import Screen, page_width
from clotho.workspace.objects import Workspace
from clotho.workspace.progress import rewards_of

REFRESH_SECONDS: Final = 1.0
RESTARTABLE: Final = ("Failed", "Stopped")


async def watch(options: argparse.Namespace, workspace: Workspace) -> int:
    return await follow(workspace, options.name, options.timeout, options)


async def follow(workspace: Workspace, name: str, seconds: int | None, options: argparse.Namespace) -> int:
    """0 once it is Completed, 1 when it ended in another way, 6 when the time is up."""
    try:
        async with asyncio.timeout(seconds):
            run = await _until_finished(workspace, name)
    except TimeoutError:
        raise Failure(f"run {name} is not finished after {seconds} s; it continues", Exit.TIMEOUT) from None
    except asyncio.CancelledError:  # Ctrl-C
        output.note(f"run {name} continues; to stop it: {hint(options, 'run', 'stop', name)}")
        raise
    lines = ["", *view.results_view(run, hint(options, "run", "download", name)), *continuing(options, run, name)]
    print("\n".join(map(output.printable, lines)))
    return Exit.OK if run["status"]["phase"] == "Completed" else Exit.UNSUCCESSFUL


def continuing(options: argparse.Namespace, run: dict[str, Any], name: str) -> list[str]:
    """The command that continues a run that ended too early; nothing where there is no checkpoint to continue from."""
    status = run.get("status", {})
    checkpoint = status.get("checkpoint") or {}
    if status.get("phase") not in RESTARTABLE or not checkpoint.get("path"):
        return []
    return [f"To continue from step {checkpoint['step']}: {hint(options, 'run', 'restart', name)}"]


async def _until_finished(workspace: Workspace, name: str) -> dict[str, Any]:
    rewards: dict[int, float] = {}
    screen = Screen(sys.stdout)
    while True:
        run = await find_run_patiently(workspace, name)
        rewards |= rewards_of(run)
        screen.show(view.watch_view(run, rewards, view.elapsed_seconds(run), page_width()))
        if view.is_finished(run):
            return run
        await asyncio.sleep(REFRESH_SECONDS)
