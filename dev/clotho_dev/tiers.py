"""Runs the test tiers in order, cheapest first, and prints at the end what ran, what was skipped, and why."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from clotho_dev import REPOSITORY

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Tier:
    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    reason_to_skip: Callable[[], str | None] = lambda: None
    starts_with_the_next: bool = False  # it uses one core only


@dataclass(frozen=True)
class Result:
    tier: Tier
    outcome: str  # a word or a sentence
    seconds: float
    output: str = ""  # of a tier that ran beside another


def no_node_here() -> str | None:
    if sys.platform != "linux":
        return "a real node needs Linux"
    if os.geteuid() != 0:
        return "a real node needs root: run `sudo make test`"
    return None


def cluster(*arguments: str) -> tuple[str, ...]:
    return (f"{BIN}/python", "-m", "clotho_dev.cluster", *arguments)


def pytest(folder: str, *options: str) -> tuple[str, ...]:
    return (f"{BIN}/pytest", f"tests/{folder}", "-q", "--durations=5", *options)


# Each worker has a control plane, or a node, of its own; more than two would wait for each other's processes.
TWO_AT_ONCE = ("--numprocesses=2", "--dist=loadfile")


TIERS = (
    Tier(
        "lint",
        "style, types and layers",
        (
            (f"{BIN}/ruff", "check", "--quiet", "."),
            (f"{BIN}/ruff", "format", "--check", "--quiet", "."),
            (f"{BIN}/mypy",),
            (f"{BIN}/lint-imports",),
        ),
        starts_with_the_next=True,
    ),
    Tier("unit", "no I/O", (pytest("unit", *TWO_AT_ONCE),)),
    Tier(
        "integration",
        "a real API server, real processes",
        (
            cluster("prepare", "--profile", "control-plane"),
            pytest("integration", *TWO_AT_ONCE, "--no-loadscope-reorder"),  # its conftest has put the longest first
            # Its cases run side by side. Stale views: `make faults` only, because one case is not reliable yet.
            pytest("faults", "--ignore=tests/faults/test_stale_views.py"),
        ),
    ),
    Tier(
        "e2e",
        "a real node, real pods",
        (cluster("prepare"), pytest("e2e", *TWO_AT_ONCE, "--no-loadscope-reorder")),  # its conftest: the longest first
        no_node_here,
    ),
)


def run(tier: Tier, output: IO[bytes] | None = None) -> Result:
    """Without `output`, what its commands print is seen at once."""
    started = time.monotonic()
    return Result(tier, _outcome(tier, output), time.monotonic() - started)


def run_quietly(tier: Tier) -> Result:
    with tempfile.TemporaryFile() as output:
        result = run(tier, output)
        output.seek(0)
        return replace(result, output=output.read().decode(errors="replace"))


def run_in_order(tiers: Sequence[Tier]) -> list[Result]:
    """What ran beside another tier is shown after it, so that their lines do not mix."""
    results: list[Result] = []
    with ThreadPoolExecutor() as threads:
        beside: list[Future[Result]] = []
        for tier in tiers:
            if tier.starts_with_the_next and tier is not tiers[-1]:
                beside.append(threads.submit(run_quietly, tier))
                continue
            _announce(tier)
            results.append(run(tier))
            for quiet in beside:
                result = quiet.result()
                _announce(result.tier)
                print(result.output, flush=True)
                results.append(result)
            beside.clear()
    return results


def _announce(tier: Tier) -> None:
    print(f"\n=== {tier.name}: {tier.title} ===", flush=True)


def _outcome(tier: Tier, output: IO[bytes] | None) -> str:
    if reason := tier.reason_to_skip():
        return f"SKIPPED: {reason}"
    for command in tier.commands:
        if (code := execute(command, output)) != 0:
            return f"FAILED: `{Path(command[0]).name} {' '.join(command[1:4])}` exited with {code}"
    return "passed"


def execute(command: tuple[str, ...], output: IO[bytes] | None = None) -> int:
    return subprocess.run(command, check=False, env=_environment(command), stdout=output, stderr=output).returncode


def build_ahead() -> subprocess.Popen[bytes]:
    """Kueue and the registry take minutes once, beside the earlier tests; those that need them wait if they must."""
    command = cluster("prepare", "--profile", "tests")
    return subprocess.Popen(("nice", *command), env=_environment(command))


def _environment(command: tuple[str, ...]) -> dict[str, str]:
    ours = {"PYTHONPATH": str(REPOSITORY / "dev"), "CLUSTER": "embedded"} if "clotho_dev.cluster" in command else {}
    environment = {**os.environ, **ours}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles torch anew: 30 s
    return environment


def main(wanted: list[str]) -> int:
    known = [tier.name for tier in TIERS]
    if unknown := sorted(set(wanted) - set(known)):
        print(f"unknown tier {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [tier for tier in TIERS if not wanted or tier.name in wanted]
    builder = build_ahead() if any(tier.name == "integration" for tier in chosen) else None
    results = run_in_order(chosen)
    if builder is not None:
        builder.wait()
    print(f"\n{'TIER':<14}{'SECONDS':>8}  OUTCOME")
    for result in results:
        print(f"{result.tier.name:<14}{result.seconds:>8.0f}  {result.outcome}")
    return 1 if any(result.outcome.startswith("FAILED") for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
