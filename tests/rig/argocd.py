"""Executes the health scripts for Argo CD, as Argo CD does: a global `obj` goes in, a table comes out."""

from pathlib import Path
from typing import Any

from lupa import LuaRuntime

SCRIPTS = Path(__file__).parents[2] / "docs" / "argocd"


def health(item: dict[str, Any], script: str = "trainingrun-health.lua") -> tuple[str, str]:
    """Status and message."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(item, recursive=True)
    answer = lua.execute((SCRIPTS / script).read_text())
    return str(answer["status"]), str(answer["message"])
