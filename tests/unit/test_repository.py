"""Rules for the repository as a whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from clotho_dev import tiers

REPOSITORY = Path(__file__).parents[2]


def test_operator_folder_does_not_shadow_the_standard_library() -> None:
    """The folder `operator/` is a source root: with an __init__.py it would break half of Python from here."""
    code = "import operator, collections; print(operator.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).is_relative_to(REPOSITORY)
    assert not (REPOSITORY / "operator" / "__init__.py").exists()


def test_ci_runs_every_tier() -> None:
    last = (REPOSITORY / ".ci" / "run").read_text().splitlines()[-1]
    assert last.split() == ["exec", "make", "test"]


def test_commit_hooks_are_the_checks_of_the_lint_tier() -> None:
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    (lint,) = (tier for tier in tiers.TIERS if tier.name == "lint")
    checks = [[Path(program).name, *arguments] for program, *arguments in lint.commands]
    assert [hook["entry"].removeprefix(".venv/bin/").split() for hook in hooks] == checks


def test_every_folder_has_a_line_in_contributing() -> None:
    table = re.findall(r"^\| (`.+?) \|", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    named = {path for cell in table for path in re.findall(r"`([^`]+)`", cell)}
    folders = {Path(name).parent.parts for name in tracked() if "/" in name}
    rooms = {"/".join(parts[: _depth(parts)]) for parts in folders}
    missing = {room for room in rooms if not any(_is_within(room, path) or _is_within(path, room) for path in named)}
    assert missing == set()
    assert {path for path in named if not (REPOSITORY / path).is_dir()} == set()


def _depth(parts: tuple[str, ...]) -> int:
    """Rooms of the operator are three levels down, images and test tiers two; the rest is named by its top folder."""
    return {"operator": 3, "images": 2, "tests": 2}.get(parts[0], 1)


def _is_within(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def test_decisions_are_numbered_and_have_a_status() -> None:
    records = sorted((REPOSITORY / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [int(path.name[:4]) for path in records]
    assert len(numbers) == len(set(numbers))
    for path, number in zip(records, numbers, strict=True):
        title, _, status = path.read_text().splitlines()[:3]
        assert title.startswith(f"# {number}. "), path.name
        assert re.match(r"Status: (proposed|accepted|replaced by \d+), \w+ \d{4}$", status), path.name


def test_links_of_the_documentation_resolve() -> None:
    broken = [
        f"{name}: {target}"
        for name in tracked("*.md")
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", (REPOSITORY / name).read_text())
        if not ((REPOSITORY / name).parent / target).exists()
    ]
    assert broken == []


def test_help_lists_every_target() -> None:
    """A target that `make` does not print is one that only its author uses."""
    texts = [path.read_text() for path in (REPOSITORY / "Makefile", *(REPOSITORY / "make").glob("*.mk"))]
    phony = {
        name for text in texts for line in re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE) for name in line.split()
    }
    done = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^  make (\S+)", done.stdout, re.MULTILINE))
    assert phony - {"help"} == listed - {"help"}


def tracked(*patterns: str) -> list[str]:
    command = ["git", "ls-files", *patterns]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()


def test_files_have_fewer_than_500_lines() -> None:
    """Under 500 lines each: beyond that a file has more than one idea."""
    too_long = {name: n for name in tracked("*.py", "*.go", "*.sh") if (n := _lines(REPOSITORY / name)) > 500}
    assert too_long == {}


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0
