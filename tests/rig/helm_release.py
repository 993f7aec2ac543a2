"""Helm bound to one namespace of a cluster, and the example runs that tests look at while releases come and go."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clotho_dev.cluster.kubectl import Kubectl, KubectlError
from rig.run_reader import read_run

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "clotho"
RELEASE = "clotho"
LIMIT_SECONDS = 240
Json = dict[str, Any]


@dataclass(frozen=True)
class Helm:
    program: Path
    kubectl: Kubectl
    namespace: str

    def run(self, *arguments: str) -> str:
        argv = [str(self.program), f"--kubeconfig={self.kubectl.kubeconfig}", f"--namespace={self.namespace}"]
        done = subprocess.run([*argv, *arguments], capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, f"helm {arguments[0]}: {done.stderr}\n{self.operator_state()}"
        return done.stdout

    def upgrade(self, chart: Path, *values: str, flags: Sequence[str] = ()) -> str:
        """`--take-ownership`: the CRDs may be there already, from another release or from plain manifests."""
        usual = ["--install", "--wait", "--timeout=120s", "--take-ownership"]
        return self.run("upgrade", RELEASE, str(chart), *usual, *flags, *(f"--set={value}" for value in values))

    def operator_state(self) -> str:
        pods = self.kubectl.in_namespace(self.namespace)
        selector = "--selector=app.kubernetes.io/component=operator"
        try:
            return pods.run("get", "pods", selector) + pods.run("logs", selector, "--tail=5", "--all-containers")
        except KubectlError as error:  # pods come and go
            return str(error)


class ExampleRun:
    """examples/cpu-quickstart/letters.yaml, as long as a test needs it."""

    def __init__(self, kubectl: Kubectl, kstatus: Path, name: str = "letters") -> None:
        self._kubectl, self._kstatus, self.name = kubectl, kstatus, name
        self._object = f"trainingrun/{name}"

    def start(self, steps: int, **spec: bool) -> None:
        manifest = yaml.safe_load((ROOT / "examples" / "cpu-quickstart" / "letters.yaml").read_text())
        manifest["metadata"]["name"] = self.name
        manifest["spec"]["training"]["steps"] = steps
        manifest["spec"]["storage"]["retain"] = False
        # One run that trains must not keep the others of a small machine from starting.
        manifest["spec"]["trainer"]["template"]["spec"]["containers"] = [
            {"name": "main", "resources": {"limits": {"cpu": "1"}}}
        ]
        self._kubectl.apply({**manifest, "spec": {**manifest["spec"], **spec}})

    def change(self, **spec: bool) -> None:
        self._kubectl.run("patch", self._object, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def annotate(self, key: str, value: str) -> None:
        self._kubectl.run("annotate", "--overwrite", self._object, f"{key}={value}")

    def delete(self) -> None:
        self._kubectl.run("delete", self._object, "--ignore-not-found")

    def body(self) -> Json:
        return read_run(self._kubectl, self.name)

    def step(self) -> int:
        return int(self.body()["status"].get("progress", {}).get("step", 0))

    def pods(self) -> dict[str, str]:
        """Names and uids."""
        items = self._kubectl.get("pods", f"--selector=clotho.dev/run={self.name}")["items"]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in items}

    def kstatus(self) -> str:
        """What Flux and Helm would make of it."""
        given = json.dumps(self.body())
        done = subprocess.run([self._kstatus], input=given, capture_output=True, text=True, check=True)
        return done.stdout.split("\t")[0]

    def until(self, what: str, check: Callable[[Json], bool]) -> Json:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not check(body := self.body()):
            assert time.monotonic() < deadline, f"run {self.name} is not {what}: {body.get('status')}"
            time.sleep(0.3)
        return body

    def until_phase(self, phase: str) -> Json:
        return self.until(phase, lambda body: body.get("status", {}).get("phase") == phase)

    def until_trained(self, steps: int) -> Json:
        return self.until(
            f"at step {steps}", lambda body: body.get("status", {}).get("progress", {}).get("step", 0) >= steps
        )
