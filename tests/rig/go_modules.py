"""Manifests of other projects, such as their CRDs, from the Go module proxy: not copies that go stale here."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def fetch(module: str) -> Path:
    """The folder with the sources of `path@version`; the test is skipped where they cannot be had."""
    go = shutil.which("go")
    if go is None:
        pytest.skip(f"without Go {module} cannot be fetched")
    with tempfile.TemporaryDirectory() as elsewhere:  # outside the repository's own Go modules
        argv = [go, "mod", "download", "-json", module]
        done = subprocess.run(argv, cwd=elsewhere, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{module} cannot be fetched: {done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])
