"""`install`: an environment's requirements, once, into a folder that pods may share."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from clotho_contract.names import PACKAGES_VARIABLE, REQUIREMENTS_VARIABLE
from clotho_contract.termination import Termination
from clotho_environment.commands.pip_output import explanation

# Wheels only, and only those with a listed hash: nothing of theirs is executed here.
_PIP: Final = (
    *("-I", "-m", "pip", "install", "--require-hashes", "--only-binary=:all:", "--no-deps", "--no-cache-dir"),
    *("--no-input", "--no-compile", "--disable-pip-version-check", "--no-warn-conflicts", "--quiet"),
)


def install(variables: Mapping[str, str]) -> Termination:
    """Installed apart and renamed: a folder of that name is complete, whichever pod made it."""
    folder, lines = Path(variables[PACKAGES_VARIABLE]), variables[REQUIREMENTS_VARIABLE]
    if folder.is_dir():
        return Termination(reason="Finished", message=f"the requirements are in {folder} already")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".installing-", ignore_cleanup_errors=True) as apart:
        made = Path(apart) / "packages"
        listed = Path(apart) / "requirements.txt"
        listed.write_text(f"{lines}\n")
        python = Path(apart) / "pip" / "bin" / "python"
        problem = _run(_base_python(), "-m", "venv", str(python.parents[1])) or _run(
            str(python), *_PIP, "--target", str(made), "--requirement", str(listed)
        )
        if problem:
            return Termination(reason="EnvironmentFailed", message=f"the requirements cannot be installed: {problem}")
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another pod was faster
                raise
    return Termination(reason="Finished", message=f"installed {len(lines.splitlines())} requirements in {folder}")


def _run(*argv: str) -> str:
    """Why it failed; empty if it did not."""
    answer = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if answer.returncode == 0:
        return ""
    return explanation(answer.stdout) or f"exit code {answer.returncode}"


def _base_python() -> str:
    """Neither the image's own environment nor every Python below it has pip, but that one can make it for a new one."""
    return str(Path(sys.base_prefix) / "bin" / "python3")
