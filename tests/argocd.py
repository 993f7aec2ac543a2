"""Executes the health script for Argo CD, as Argo CD does: a global `obj` goes in, a table comes out."""

from pathlib import Path
from typing import Any

from lupa import LuaRuntime

SCRIPT = Path(__file__).parents[1] / "docs" / "argocd" / "trainingrun-health.lua"


def health(run: dict[str, Any]) -> tuple[str, str]:
    """Status and message."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(run, recursive=True)
    answer = lua.execute(SCRIPT.read_text())
    return str(answer["status"]), str(answer["message"])
