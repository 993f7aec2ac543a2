"""The time of `--help`, beside an empty interpreter. Prints one JSON line last.

CPU time besides wall time, which on a busy machine depends on what else runs. Bytecode is compiled first, as in an
installed package.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clotho.cli import arguments

PROGRAM = Path(sys.executable).parent / "clotho"
ROUNDS = 15


def measure(environment: dict[str, str], *argv: str) -> tuple[float, float]:
    """Wall and CPU milliseconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True, env=environment)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall * 1000, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def main() -> None:
    commands = [[name] for name in arguments.TREE.names()]
    lines = [["--help"], *([*words, "--help"] for words in commands), ["run", "start", "--help"]]
    nothing, helps = [], []
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for words in lines:
            measure(environment, str(PROGRAM), *words)
        for _ in range(ROUNDS):  # in turns, so that a busy moment affects both
            nothing.append(measure(environment, sys.executable, "-c", "pass"))
            helps += [measure(environment, str(PROGRAM), *words) for words in lines]
    idle, busy = ([statistics.median(column) for column in zip(*each, strict=True)] for each in (nothing, helps))
    figures = {
        "commands": len(lines),
        "nothing_wall_ms": round(idle[0], 1),
        "nothing_cpu_ms": round(idle[1], 1),
        "help_wall_ms": round(busy[0], 1),
        "help_cpu_ms": round(busy[1], 1),
        "cpu_ratio": round(busy[1] / idle[1], 2),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
