"""Runs the test tiers in order, cheapest first, and prints at the end what ran, what was skipped, and why."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clotho_dev import REPOSITORY

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Tier:
    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    reason_to_skip: Callable[[], str | None] = lambda: None


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


# Each worker has a control plane of its own; more than two would wait for each other's processes.
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
        (cluster("prepare"), pytest("e2e")),
        no_node_here,
    ),
)


def run(tier: Tier) -> str:
    """The outcome in a word or a sentence."""
    if reason := tier.reason_to_skip():
        return f"SKIPPED: {reason}"
    for command in tier.commands:
        if (code := execute(command)) != 0:
            return f"FAILED: `{Path(command[0]).name} {' '.join(command[1:4])}` exited with {code}"
    return "passed"


def execute(command: tuple[str, ...]) -> int:
    return subprocess.run(command, check=False, env=_environment(command)).returncode


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
    outcomes = []
    chosen = [tier for tier in TIERS if not wanted or tier.name in wanted]
    builder = build_ahead() if any(tier.name == "integration" for tier in chosen) else None
    for tier in chosen:
        print(f"\n=== {tier.name}: {tier.title} ===", flush=True)
        started = time.monotonic()
        outcomes.append((tier.name, run(tier), time.monotonic() - started))
    if builder is not None:
        builder.wait()
    print(f"\n{'TIER':<14}{'SECONDS':>8}  OUTCOME")
    for name, outcome, seconds in outcomes:
        print(f"{name:<14}{seconds:>8.0f}  {outcome}")
    return 1 if any(outcome.startswith("FAILED") for _, outcome, _ in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
