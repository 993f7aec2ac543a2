"""The live view of a run: redrawn in a notebook and on a terminal; elsewhere a line for each change."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Mapping
from typing import Any

from clotho.cli.terminal import view
from clotho.cli.terminal.output import printable
from clotho.cli.terminal.screen import Screen, page_width
from clotho.workspace.progress import rewards_of

Object = Mapping[str, Any]
WIDTH = 100  # of the view in a notebook


def as_html(run: Object, rewards: Mapping[int, float] | None = None) -> str:
    """Names, messages and pods are text that others wrote: escaped."""
    frame = view.watch_view(run, rewards or rewards_of(run), view.elapsed_seconds(run), WIDTH)
    text = "\n".join(map(printable, frame.lines(WIDTH)))
    return f"<pre>{html.escape(text)}</pre>"


def live_display() -> Callable[[Object, Mapping[int, float]], None]:
    """What is called with each state of the run."""
    return _in_notebook() or _on_screen()


def _on_screen() -> Callable[[Object, Mapping[int, float]], None]:
    screen = Screen(sys.stdout)
    return lambda run, rewards: screen.show(view.watch_view(run, rewards, view.elapsed_seconds(run), page_width()))


def _in_notebook() -> Callable[[Object, Mapping[int, float]], None] | None:
    """Without importing IPython: a notebook has done that."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is None or not hasattr(shell, "kernel"):
        return None
    show, content = ipython.display.display, ipython.display.HTML
    handle = show(content(""), display_id=True)
    return lambda run, rewards: handle.update(content(as_html(run, rewards)))
