"""TrainingRuns as users handle them: apply, read, wait, with a clear failure when a wait times out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from clotho_dev import REPOSITORY
from clotho_dev.cluster.kubectl import Kubectl
from rig.run_reader import read_run

LIMIT_SECONDS = 300.0
POLL_SECONDS = 0.3
Object = dict[str, Any]


def letters(name: str, *, steps: int | None = None, **spec: Any) -> Object:
    """The example that people copy, with another name and perhaps another length."""
    run: Object = yaml.safe_load((REPOSITORY / "examples" / "cpu-quickstart" / "letters.yaml").read_text())
    run["metadata"]["name"] = name
    run["spec"]["training"]["steps"] = steps or run["spec"]["training"]["steps"]
    run["spec"] |= spec
    return run


@dataclass(frozen=True)
class Runs:
    """The runs of one namespace."""

    kubectl: Kubectl

    def get(self, name: str) -> Object:
        return read_run(self.kubectl, name)

    def patch(self, name: str, spec: Object) -> None:
        self.kubectl.run("patch", "trainingrun", name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def pods(self, name: str, component: str = "") -> list[Object]:
        selector = f"app.kubernetes.io/instance={name}" + (
            f",app.kubernetes.io/component={component}" if component else ""
        )
        items: list[Object] = self.kubectl.get("pods", f"--selector={selector}")["items"]
        return items

    def wait(self, name: str, what: str, until: Callable[[Object], bool]) -> Object:
        return _wait(lambda: self.get(name), f"{name} is not {what}", until)

    def wait_for(self, item: str, what: str, until: Callable[[Object], bool]) -> Object:
        """Of any kind, as kubectl names it."""
        return _wait(lambda: self.kubectl.get(item), f"{item} is not {what}", until)

    def wait_for_phase(self, name: str, *phases: str) -> Object:
        return self.wait(name, " or ".join(phases), lambda run: run.get("status", {}).get("phase") in phases)

    def wait_for_step(self, name: str, step: int) -> Object:
        return self.wait(name, f"at step {step}", lambda run: step_of(run) >= step)


def _wait(read: Callable[[], Object], problem: str, until: Callable[[Object], bool]) -> Object:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not until(found := read()):
        assert time.monotonic() < deadline, f"{problem}: {json.dumps(found.get('status'), indent=1)}"
        time.sleep(POLL_SECONDS)
    return found


def step_of(run: Object) -> int:
    step: int = (run.get("status", {}).get("progress") or {}).get("step", 0)
    return step


def condition(item: Object, kind: str) -> str:
    conditions = item.get("status", {}).get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == kind), "absent")
