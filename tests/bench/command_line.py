"""What `--help` costs, beside an interpreter that does nothing. Prints one JSON line last.

CPU time besides wall time: on a busy machine the latter says more about the neighbours.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from clotho.cli import arguments

PROGRAM = Path(sys.executable).parent / "clotho"
ROUNDS = 15


def measure(*argv: str) -> tuple[float, float]:
    """Wall and CPU milliseconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall * 1000, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def main() -> None:
    commands = [[name] for name in arguments.TREE.names()]
    lines = [["--help"], *([*words, "--help"] for words in commands), ["run", "start", "--help"]]
    nothing, helps = [], []
    for _ in range(ROUNDS):  # in turns, so that a busy moment hits both
        nothing.append(measure(sys.executable, "-c", "pass"))
        helps += [measure(str(PROGRAM), *words) for words in lines]
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
