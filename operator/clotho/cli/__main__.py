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
        from clotho.cli.completion import candidates

        print("\n".join(candidates(words[1:])))
        return Exit.OK
    options = arguments.parse(called_by(sys.argv[0]), words)
    try:
        return run(load(options.run), options)
    except Failure as failure:
        from clotho.cli.output import printable

        lines = f"{options.parser.prog}: {failure}".split("\n")
        print("\n".join(map(printable, lines)), file=sys.stderr)
        return failure.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK


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
    from clotho.cli.connection import run_connected

    return run_connected(command, options)


if __name__ == "__main__":
    sys.exit(main())
