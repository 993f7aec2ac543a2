"""Applies each mutation of the catalogue to a copy of the repository and runs the tests that must notice it.

python tests/mutants/run.py                 all of them; exits with 1 when a mutant survives
python tests/mutants/run.py --match lease   those whose defect or file contains the word
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from mutants.catalogue import CATALOGUE  # noqa: E402
from mutants.mutation import Mutation  # noqa: E402

COPIED = ("operator", "images", "tests", "crds", "charts", "dev", "docs", "examples", "install", "pyproject.toml")
LIMIT_SECONDS = 900  # far more than any mutation needs, also on a busy machine
NO_TESTS_RAN = frozenset({2, 3, 4, 5})  # pytest: interrupted, internal error, usage error, nothing collected


@dataclass(frozen=True)
class Outcome:
    mutation: Mutation
    is_killed: bool
    seconds: float
    problem: str = ""


class Copies:
    """One copy of the repository for each worker: a mutated file is put back before the next mutation."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for index in range(count):
            copy = folder / str(index)
            copy.mkdir()
            for name in COPIED:
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
                elif source.exists():
                    shutil.copy2(source, copy / name)
            self._free.put(copy)

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[Path]:
        copy = self._free.get()
        target = copy / mutation.file
        original = target.read_text()
        target.write_text(mutation.applied_to(original))
        try:
            yield copy
        finally:
            target.write_text(original)
            self._free.put(copy)


def run(mutation: Mutation, copies: Copies) -> Outcome:
    started = time.monotonic()
    with copies.mutated(mutation) as copy:
        code, output = pytest(copy, mutation.tests)
    seconds = time.monotonic() - started
    if code is None:
        return Outcome(mutation, is_killed=False, seconds=seconds, problem=f"no end within {LIMIT_SECONDS} s")
    if code in NO_TESTS_RAN:
        return Outcome(mutation, is_killed=False, seconds=seconds, problem=f"pytest exited with {code}:\n{output}")
    return Outcome(mutation, is_killed=code != 0, seconds=seconds)


def pytest(copy: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """Exit code and the end of the output; no exit code when it ran into the limit, and then nothing is known."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return None, f"no end within {LIMIT_SECONDS} s"
    return done.returncode, done.stdout[-2000:]


def check_unmutated(mutations: Sequence[Mutation], copies: Copies) -> str:
    """The output of the tests when they fail without any mutation, else an empty string."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    unchanged = Mutation("nothing", "pyproject.toml", "[project]", "[project]", tuple(tests))
    with copies.mutated(unchanged) as copy:
        code, output = pytest(copy, tests)
    return "" if code == 0 else output


def report(outcomes: Sequence[Outcome]) -> str:
    lines = [f"{'OUTCOME':<10}{'SECONDS':>8}  DEFECT"]
    for outcome in sorted(outcomes, key=lambda each: each.is_killed):
        word = "killed" if outcome.is_killed else "SURVIVED"
        lines.append(f"{word:<10}{outcome.seconds:>8.1f}  {outcome.mutation.defect}  ({outcome.mutation.file})")
        if outcome.problem:
            lines.append(outcome.problem)
    survivors = sum(not outcome.is_killed for outcome in outcomes)
    return "\n".join([*lines, "", f"{len(outcomes)} mutants, {survivors} survived"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="run only the mutations whose defect or file contains this")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = [each for each in CATALOGUE if options.match in each.defect or options.match in each.file]
    if not chosen:
        print(f"no mutation matches {options.match!r}", file=sys.stderr)
        return 2
    for mutation in chosen:
        mutation.check(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        copies = Copies(Path(folder), options.workers)
        print(f"Running the tests of {len(chosen)} mutations without a mutation first ...", flush=True)
        if failure := check_unmutated(chosen, copies):
            print(failure, "\nThe tests fail without a mutation: fix them first.", sep="\n", file=sys.stderr)
            return 1
        with ThreadPoolExecutor(options.workers) as pool:
            outcomes = []
            for outcome in pool.map(lambda each: run(each, copies), chosen):
                outcomes.append(outcome)
                print(f"  {len(outcomes)}/{len(chosen)}  {outcome.mutation.defect}", flush=True)
    print(report(outcomes))
    return 1 if any(not outcome.is_killed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
