"""The grammar of the command line: help everywhere, one line for mistakes, nothing heavy before it is needed."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho.cli import arguments
from clotho.cli.__main__ import called_by, main
from clotho.cli.commands.completion import SCRIPTS, candidates
from clotho.cli.failure import Exit
from clotho.cli.parser import Command, Group


def leaves(group: Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    for each in group.members:
        if isinstance(each, Group):
            yield from leaves(each, (*path, each.name))
        else:
            yield (*path, each.name), each


COMMANDS = [path for path, _ in leaves(arguments.TREE)]


def test_all_commands_are_there() -> None:
    assert {" ".join(path) for path in COMMANDS} == {
        *(f"env {name}" for name in ("list", "discover", "describe")),
        *(
            f"run {name}"
            for name in ("start", "list", "status", "watch", "stop", "resume", "logs", "results", "download")
        ),
        *(f"run {name}" for name in ("from-config", "clone", "restart", "compare", "delete", "plot", "samples")),
        "test",
        "sweep start",
        "sweep results",
        "policy explain",
        "check",
        "mcp",
        "ui",
        "completion",
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_a_function(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*path, "--help"])
    assert ended.value.code == 0
    assert " ".join(path) in capsys.readouterr().out
    parser = dict(leaves(arguments.TREE))[path].parser("clotho")
    module, _, function = parser.get_default("run").partition(":")
    command = getattr(importlib.import_module(module), function)
    needs_cluster = "--namespace" in parser.known_options()
    connects_itself = path in {
        ("run", "from-config"),
        ("env", "discover"),
        ("check",),
    }  # they have something to print without a cluster
    assert inspect.iscoroutinefunction(command) is (needs_cluster and not connects_itself)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "--version   show the version of this program and exit"),
        (["sweep"], "`clotho sweep -f FILE` is the same as `clotho sweep start -f FILE`."),
    ],
)
def test_help_of_a_group_has_what_it_takes_itself(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "did you mean run?"),
        (["run", "lsit"], "no command 'lsit'; did you mean list?"),
        (["run", "frobnicate"], "'frobnicate' is not one of: start, clone, "),
        (["-n", "lab", "run", "list"], "-n comes before the command; write options after it: clotho COMMAND -n ..."),
        (["run", "logs", "x", "--since", "soon"], "'soon' is not a duration such as 90s, 15m, 2h or 1d"),
        (["run", "download", "x", "--what", "modle"], "did you mean model?"),
        (["run", "list", "--namespce", "x"], "did you mean --namespace"),
        (["run", "list", "-o", "xml"], "'xml' is not one of: table, json, yaml"),
        (["run", "start", "-e", "x", "--steps", "0"], "is not a positive whole number"),
        (["run", "start"], "one of the arguments -f/--file -e/--environment is required"),
        (["completion", "tcsh"], "is not one of: bash, zsh, fish"),
        (["env", "discover", ".", "--image-path", "/x"], "name it with --image"),
        (["env", "discover", ".", "--image", "i", "--image-path", "/x", "--config-map"], "exclude each other"),
        (["mcp", "--http", "--port", "99999"], "'99999' is not a port"),
        (["mcp", "--http", "--port", "0"], "'0' is not a port"),
        (["mcp", "--status-interval", "-1"], "'-1' is not a positive whole number"),
    ],
)
def test_mistakes_are_reported_in_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    printed = capsys.readouterr().err
    assert code == Exit.USAGE
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["run"]])
def test_an_unfinished_command_shows_what_there_is(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == Exit.USAGE
    assert "COMMAND" in capsys.readouterr().err


def test_the_program_has_the_name_that_was_typed() -> None:
    assert called_by("/usr/local/bin/kubectl-clotho") == "kubectl clotho"
    assert called_by("/usr/local/bin/clotho") == "clotho"
    assert called_by("/x/clotho/cli/__main__.py") == "clotho"
    assert arguments.TREE.parser("kubectl clotho").format_usage().startswith("usage: kubectl clotho ")


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, clotho.cli.__main__ as m; m.arguments.parse('c', ['run', 'list']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"asyncio", "aiohttp", "msgspec", "yaml", "mcp", "pydantic", "ssl", "kopf", "inspect"}
    assert heavy.isdisjoint(loaded)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["r"], ["run"]),
        (["run", "st"], ["start", "status", "stop"]),
        (["rnu", ""], []),
        (["run", "list", "-o", ""], ["table", "json", "yaml"]),
        (["run", "list", "--o"], ["--output"]),
        (["run", "logs", "x", "-c", "t"], ["trainer"]),
        (["run", "download", "x", "--what", "m"], ["model", "metrics"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["run", "start", "-f", ""], []),
        (["run", "watch", ""], []),
    ],
)
def test_completion_offers_commands_options_and_choices(words: list[str], expected: list[str]) -> None:
    assert candidates(words) == expected


@pytest.mark.parametrize("shell", SCRIPTS)
def test_completion_scripts_call_this_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "clotho __complete" in capsys.readouterr().out


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text("class Echo(BaseEnv): ...\n")
    command = [sys.executable, "-m", "clotho.cli", "env", "discover", str(tmp_path), "-o", "yaml"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == Exit.UNSUCCESSFUL
    assert done.stderr == "clotho env discover: cannot write the output: No space left on device\n"


def test_every_installed_program_exists() -> None:
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    assert {"clotho", "kubectl-clotho", "kubectl_complete-clotho"} <= scripts.keys()
    for place in scripts.values():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
