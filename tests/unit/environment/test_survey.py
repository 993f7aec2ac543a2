"""Why an environment of an Atropos checkout cannot be described."""

import sys
from pathlib import Path

import pytest

from clotho_dev.atropos_survey import describe_all, reason_for


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ModuleNotFoundError: No module named 'bs4'", "package not installed: bs4"),
        ("ImportError: cannot import name 'old' from 'lib'", "another version of a package needed: old"),
        ("ImportError: attempted relative import with no known parent package", "part of a package, not a program"),
        ("LocalEntryNotFoundError: cannot find the files", "needs a hub"),
        ("KeyError: 'OPENAI_API_KEY'", "needs a key"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x.csv'", "needs a file that is not there"),
        ("SystemExit: x.py has no subclass of BaseEnv", "no environment without its optional imports"),
        ("ZeroDivisionError: division by zero", "unexplained"),
    ],
)
def test_errors_are_classified(error: str, reason: str) -> None:
    assert reason_for(error) == reason


def test_interpreter_without_atroposlib_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="needs atroposlib"):
        list(describe_all(sys.executable, tmp_path, [tmp_path / "server.py"]))
