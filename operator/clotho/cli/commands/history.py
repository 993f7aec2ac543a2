"""`run plot` and `run samples`: how a run has learned, also when its pods are gone."""

from __future__ import annotations

import argparse

import msgspec

from clotho.cli.failure import Exit, Failure
from clotho.cli.session.lookup import find_run
from clotho.cli.terminal import curves, output
from clotho.cli.terminal.screen import page_width
from clotho.workspace.history import history_of
from clotho.workspace.objects import Workspace


async def plot(options: argparse.Namespace, workspace: Workspace) -> int:
    series = (await history_of(workspace, await find_run(workspace, options.name))).series
    lines = curves.curves(series, options.figures or (), page_width())
    if not lines:
        what = f"has no {' and no '.join(options.figures)}" if options.figures else "has no curves"
        raise Failure(f"run {options.name} {what} yet; they are kept from the first step on", Exit.NOT_FOUND)
    output.show(options.output, msgspec.to_builtins(series), lines)
    return Exit.OK


async def samples(options: argparse.Namespace, workspace: Workspace) -> int:
    groups = (await history_of(workspace, await find_run(workspace, options.name))).samples
    chosen = [group for group in groups if options.kind in (None, group.kind)]
    if not chosen:
        raise Failure(f"run {options.name} has no samples yet; they are kept from the first step on", Exit.NOT_FOUND)
    output.show(options.output, msgspec.to_builtins(chosen), curves.samples(chosen, page_width()))
    return Exit.OK
