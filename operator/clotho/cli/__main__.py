"""`clotho` and `kubectl clotho`: finds the command, connects when it needs the cluster, and never shows a traceback."""

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

COMPLETE = "__complete"  # what shells ask with: `clotho __complete run st` prints what `st` may become


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if words[:1] == [COMPLETE]:
        from clotho.cli.commands.completion import candidates

        print("\n".join(candidates(words[1:])))
        return Exit.OK
    options = arguments.parse(called_by(sys.argv[0]), words)
    try:
        code = run(load(options.run), options)
        sys.stdout.flush()  # a full disk is noticed here, and not when the interpreter ends
        return code
    except Failure as failure:
        _complain(options, str(failure))
        return failure.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        _drop_output()
        return Exit.OK
    except OSError as error:
        _drop_output()
        what = f"read or write {error.filename}" if error.filename else "write the output"
        _complain(options, f"cannot {what}: {error.strerror or error}")
        return Exit.UNSUCCESSFUL


def _complain(options: argparse.Namespace, told: str) -> None:
    from clotho.cli.terminal.output import note

    for line in f"{options.parser.prog}: {told}".split("\n"):
        note(line)


def _drop_output() -> None:
    """What is still buffered has nowhere to go; without this the interpreter tries again at its end, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def called_by(program: str) -> str:
    """kubectl runs plugins by the name that it makes of `kubectl clotho`."""
    name = Path(program).stem
    return "kubectl clotho" if name == "kubectl-clotho" else "clotho"


def load(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    command: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return command


def run(command: Callable[..., Any], options: argparse.Namespace) -> int:
    """Coroutines are the commands that want a cluster."""
    import inspect

    if not inspect.iscoroutinefunction(command):
        return int(command(options))
    from clotho.cli.session.connection import run_connected

    return run_connected(command, options)


if __name__ == "__main__":
    sys.exit(main())
