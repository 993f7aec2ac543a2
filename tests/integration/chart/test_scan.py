"""A scan of everything that we put into a cluster: the chart, and the pods of runs. Accepted findings have a reason."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rig.trajectory_servers import ToolUnavailableError, install_apart

HERE = Path(__file__).parent
RUNS = HERE.parents[1] / "unit" / "render" / "golden"
EXCEPTIONS = yaml.safe_load((HERE / "scan_exceptions.yaml").read_text())
Finding = tuple[str, str]  # check, resource


@pytest.fixture(scope="session")
def checkov() -> Path:
    try:
        return install_apart("checkov", "3.3.30").parent / "checkov"
    except ToolUnavailableError as error:
        pytest.skip(f"checkov cannot be installed here: {error}")


def test_every_scan_finding_is_accepted_with_a_reason(
    checkov: Path, render: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    chart = [item for item in render("replicas=2") if item["kind"] != "CustomResourceDefinition"]
    (tmp_path / "chart.yaml").write_text(yaml.safe_dump_all(chart))
    for path in RUNS.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    found = scan(checkov, tmp_path)
    accepted = {finding for finding in found if any(accepts(exception, finding) for exception in EXCEPTIONS)}
    assert found - accepted == set()
    unused = [e["check"] for e in EXCEPTIONS if not any(accepts(e, finding) for finding in found)]
    assert unused == [], "these exceptions are no longer needed"


def accepts(exception: dict[str, str], finding: Finding) -> bool:
    return exception["check"] == finding[0] and re.search(exception["resource"], finding[1]) is not None


def scan(checkov: Path, folder: Path) -> set[Finding]:
    argv = [str(checkov), "--directory", str(folder), "--framework", "kubernetes", "--output", "json"]
    done = subprocess.run(
        [*argv, "--skip-download", "--quiet"], capture_output=True, text=True, check=False, timeout=240
    )
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["passed"] > 500
    return {(finding["check_id"], finding["resource"]) for finding in report["results"]["failed_checks"]}
