"""`clotho` and `kubectl clotho`: finds the command, connects where it needs the cluster, and shows no tracebacks."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clotho.cli import arguments
from clotho.cli.failure import Exit, Failure

COMPLETE = "__complete"  # called by the shell: `clotho __complete run st` prints what `st` may become


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [COMPLETE]:
        from clotho.cli.commands.completion import candidates

        print("\n".join(candidates(argv[1:])))
        return Exit.OK
    options = arguments.parse(called_by(sys.argv[0]), argv)
    try:
        code = run(load(options.run), options)
        sys.stdout.flush()  # a full disk is reported here, not when the interpreter exits
        return code
    except Failure as failure:
        _complain(options, str(failure))
        return failure.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `| head` has exited
        _drop_output()
        return Exit.OK
    except OSError as error:
        _drop_output()
        what = f"read or write {error.filename}" if error.filename else "write the output"
        _complain(options, f"cannot {what}: {error.strerror or error}")
        return Exit.UNSUCCESSFUL


def _complain(options: argparse.Namespace, message: str) -> None:
    from clotho.cli.terminal.output import note

    for line in f"{options.parser.prog}: {message}".split("\n"):
        note(line)


def _drop_output() -> None:
    """Without this the interpreter tries to flush again when it exits, and prints an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def called_by(program: str) -> str:
    """kubectl calls a plugin by the name of its file."""
    name = Path(program).stem
    return "kubectl clotho" if name == "kubectl-clotho" else "clotho"


def load(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    command: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return command


def run(command: Callable[..., Any], options: argparse.Namespace) -> int:
    """Coroutines are the commands that need a cluster."""
    import inspect

    if not inspect.iscoroutinefunction(command):
        return int(command(options))
    from clotho.cli.session.connection import run_connected

    return int(run_connected(command, options))


if __name__ == "__main__":
    sys.exit(main())
