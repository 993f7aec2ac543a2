"""Promises that the repository as a whole makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_operator_still_means_the_standard_library() -> None:
    """The folder `operator/` is a source root: with an __init__.py it would break half of Python from here."""
    code = "import operator, collections; print(operator.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).is_relative_to(REPOSITORY)
    assert not (REPOSITORY / "operator" / "__init__.py").exists()


def test_ci_calls_the_command_of_the_readme() -> None:
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()
    assert "make test" in (REPOSITORY / "README.md").read_text()


def test_files_stay_readable() -> None:
    """Under 500 lines each: beyond that a file has more than one idea."""
    tracked = subprocess.run(
        ["git", "ls-files", "*.py", "*.go", "*.sh"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    too_long = {name: n for name in tracked.stdout.split() if (n := _lines(REPOSITORY / name)) > 500}
    assert too_long == {}


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0
