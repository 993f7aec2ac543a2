"""Untrusted code that runs as a child process finds no token: not in its variables, not in its parent's memory."""

import json
import os
import shutil

import pytest

from clotho_contract import names
from clotho_dev.ports import free_port
from integration.environment.commands import command, write_run
from integration.environment.stand_ins import TOKEN

KEY = "sk-a-key-for-the-model"
SPY = """
import json, os, pathlib

def read(path):
    try:
        return pathlib.Path(path).read_bytes().decode(errors="replace")
    except OSError as error:
        return type(error).__name__

def memory(pid):
    try:
        lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
        heap = next(line for line in lines if line.endswith("[heap]")).split()[0].split("-")
        start, end = (int(part, 16) for part in heap)
        with open(f"/proc/{pid}/mem", "rb") as file:
            file.seek(start)
            return file.read(end - start).decode(errors="replace")
    except OSError as error:
        return type(error).__name__

parent = os.getppid()
seen = {
    "variables": dict(os.environ),
    "own": read("/proc/self/environ"),
    "parent": read(f"/proc/{parent}/environ"),
    "arguments": read(f"/proc/{parent}/cmdline") + read("/proc/self/cmdline"),
    "memory": memory(parent),
}
pathlib.Path(REPORT).write_text(json.dumps(seen))
raise SystemExit("done")
"""


def unprivileged() -> list[str]:
    """As in a pod, where no container has a capability: root could read every process."""
    if os.geteuid() != 0:
        return []
    if not shutil.which("setpriv"):
        pytest.skip("run as an ordinary user, or install setpriv")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


@pytest.mark.parametrize("name", ["serve", "process", "describe"])
async def test_a_child_finds_no_token(tmp_path, name):
    spy = tmp_path / "spy.py"
    spy.write_text(SPY.replace("REPORT", repr(str(tmp_path / "seen.json"))))
    write_run(tmp_path, api_server="http://127.0.0.1:9", inference="http://127.0.0.1:9", entry=f"atropos:{spy}")
    tokens = {value: TOKEN for key, value in vars(names).items() if key.endswith("TOKEN_VARIABLE")}
    options = ["--port", str(free_port())] if name == "serve" else []
    variables = tokens | {"OPENAI_API_KEY": KEY, "THE_ENVIRONMENTS_OWN": "setting"}
    async with command(tmp_path, name, *options, variables=variables, prefix=unprivileged()) as running:
        assert await running.wait() == 1, running.log
    assert "done" in running.termination_message["message"]
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["variables"]["THE_ENVIRONMENTS_OWN"] == "setting"
    assert not set(seen["variables"]) & {*tokens, "OPENAI_API_KEY"}
    assert (seen["parent"], seen["memory"]) == ("PermissionError", "PermissionError")
    found = json.dumps(seen)
    assert TOKEN not in found
    assert KEY not in found
