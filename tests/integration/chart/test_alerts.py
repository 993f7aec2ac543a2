"""The alert rules under promtool: well-formed as files and inside the PrometheusRule, and firing when they should."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho_dev.chart.generate import CHART
from rig import prometheus

RULES = CHART / "files" / "alerts.yaml"


@pytest.fixture(scope="session")
def promtool() -> Callable[..., str]:
    program = prometheus.require("promtool")

    def run(*arguments: str, folder: Path) -> str:
        done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_rules_are_well_formed(
    promtool: Callable[..., str], render: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    wrapped = next(item for item in render("monitoring.alerts.enabled=true") if item["kind"] == "PrometheusRule")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(wrapped["spec"]))
    assert "SUCCESS: 11 rules found" in promtool("check", "rules", "rules.yaml", folder=tmp_path)


def test_alerts_fire_when_they_should(promtool: Callable[..., str], tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(Path(__file__).parent / "alerts_test.yaml", tmp_path)
    promtool("test", "rules", "alerts_test.yaml", folder=tmp_path)


def test_every_alert_is_tested() -> None:
    tests = yaml.safe_load((Path(__file__).parent / "alerts_test.yaml").read_text())["tests"]
    fired = {check["alertname"] for test in tests for check in test["alert_rule_test"] if check["exp_alerts"]}
    rules = yaml.safe_load(RULES.read_text())["groups"]
    assert fired == {rule["alert"] for group in rules for rule in group["rules"]}
